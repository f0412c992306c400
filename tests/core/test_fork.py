"""A process that forks while another thread fits: the child can fit, too."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest

from calibrant.core.threads import _state, one_blas_thread


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_children_do_not_inherit_a_held_lock():
    stop = threading.Event()

    def busy():
        while not stop.is_set():
            with one_blas_thread():
                pass

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        codes = [_forked() for _ in range(60)]
    finally:
        stop.set()
        thread.join()
    assert codes == [0] * 60
    assert _state["users"] == 0


def _forked() -> int:
    child = os.fork()
    if child == 0:
        with one_blas_thread():
            product = np.ones((8, 8)) @ np.ones((8, 8))
        os._exit(0 if product[0, 0] == 8 and _state["users"] == 0 else 1)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return -1
