"""Install other servers to compare with: `python -m bench.peers.install [NAME...]`, all of them by default.

Each goes into an environment of its own under `.venv-peers` (some hundred megabytes each). Running it again updates.
"""

from __future__ import annotations

import argparse

from bench.peers import PEERS, install


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PEERS))
    names = parser.parse_args().names or list(PEERS)
    if unknown := set(names) - set(PEERS):
        parser.error(f"no peer is called {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    for name in names:
        print(f"installing {PEERS[name].title}", flush=True)
        install(name)


if __name__ == "__main__":
    main()
