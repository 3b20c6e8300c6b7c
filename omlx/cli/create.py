from omlx.cli.command import verb


@verb("create")
def command(args):
    "create"
