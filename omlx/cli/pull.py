from omlx.cli.command import verb


@verb("pull")
def command(args):
    "pull"
