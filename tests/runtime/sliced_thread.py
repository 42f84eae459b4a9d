"""A thread in virtual time that writes the parts of a snapshot.

It is a real one, which stands still before each part until the loop lets it go on. So others decide and
commit between two parts, and every run is the same.
"""

from __future__ import annotations

import threading

from schedulemesh.engine import codec


class SlicedThread(threading.Thread):
    """Runs a function up to the next part of a snapshot, each time that it is let on."""

    def __init__(self, call):
        super().__init__(daemon=True)
        self._call = call
        self._go_on, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        self._pauses = True
        self.is_over = False
        self.result = None
        self.error = None

    def run(self):
        """Called in the thread."""
        self._go_on.acquire()
        try:
            self.result = self._call()
        except Exception as error:  # noqa: BLE001  # whoever waits for the thread gets it
            self.error = error
        self.is_over = True
        self._stands.release()

    def pause(self):
        """Called in the thread, before each part."""
        if self._pauses:
            self._stands.release()
            self._go_on.acquire()

    def go_on(self):
        """Return when it stands still again, or is over."""
        self._go_on.release()
        self._stands.acquire()

    def end(self):
        """Let it go on to its end, because nobody waits for it any more."""
        self._pauses = False
        if not self.is_over:
            self.go_on()
        self.join()


def encode_chunk(part):
    """A part as it is stored; in a sliced thread after a pause."""
    thread = threading.current_thread()
    if isinstance(thread, SlicedThread):
        thread.pause()
    return codec.encode_chunk(part)
