from omlx.cli.command import verb


@verb("show")
def command(args):
    "show"
