"""The main module of a process that makes minibatches: `python -m partita.engine.data.worker DESCRIPTOR`."""

import sys

from partita.engine.data.workers import serve

if __name__ == "__main__":
    serve(int(sys.argv[1]))
