from omlx.cli.command import verb


@verb("run")
def command(args):
    "run"
