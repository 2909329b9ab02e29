"""A worker of `elmo embed FOLDER` that sends a signal at a known sentence of a known file, so that no clock is needed.

ELMOKIT_TEST_SIGNAL is "worker|parent SIGNAL FILE SENTENCE"; ELMOKIT_TEST_WORKERS is a folder that gets a file named
after the id of every worker process.
"""

import os
import signal
import time
from pathlib import Path

from elmokit.cli.embed import serve as serve_as_usual
from elmokit.output.embed_lines import Spool


def serve() -> None:
    Path(os.environ["ELMOKIT_TEST_WORKERS"], str(os.getpid())).touch()
    who, name, file, sentence = (os.environ.get("ELMOKIT_TEST_SIGNAL") or "worker SIGKILL none 0").split()
    plain = Spool.append

    def append(self, text, tokens, vectors):
        plain(self, text, tokens, vectors)
        if self.output.name == file and self.done.sentences == int(sentence):
            self.commit()
            os.kill(os.getpid() if who == "worker" else os.getppid(), getattr(signal, name))
            time.sleep(3600)  # until this process is ended

    Spool.append = append
    serve_as_usual()


START = """
import sys
from elmokit.cli import main
from elmokit.output import embed_folder
plain = embed_folder.start_worker
embed_folder.start_worker = lambda module, *rest: plain("support.folder_worker", *rest)
main(sys.argv[1:])
"""
