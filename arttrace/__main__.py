"""The `arttrace` command, and `python -m arttrace` where its script is not on PATH or another environment's is.

Ctrl-C ends it in one line from here on: it imports next to nothing before it sees to that.
"""

import os
import signal

_INTERRUPTED = 130


def main() -> None:
    """Run the command line. While that is imported Ctrl-C ends the process at once: there is nothing to close yet."""
    raises = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if raises:
        signal.signal(signal.SIGINT, _end)
    from arttrace.commands import main as command_line

    try:
        if raises:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        command_line("arttrace")
    except KeyboardInterrupt:
        _end()


def _end(*_: object) -> None:
    # An exception amid an import may come out as another one, or abort C++ code.
    try:
        os.write(2, b"\ninterrupted\n")
    finally:
        os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
