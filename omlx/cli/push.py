from omlx.cli.command import verb


@verb("push")
def command(args):
    "push"
