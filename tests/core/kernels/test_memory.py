"""The pool of memory blocks: reuse, safety and its bound."""

import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from chainsight.core.kernels.memory import SMALL, Pool, empty, using

SHAPE = (1, 64, 32, 32)  # 256 KiB of float32


def test_arrays_are_channels_last_and_blocks_are_reused():
    pool = Pool()
    a = pool.empty(SHAPE)
    assert a.shape == SHAPE
    assert a.dtype == np.float32
    assert a.transpose(0, 2, 3, 1).flags.c_contiguous
    assert a.ctypes.data % 64 == 0
    address = a.ctypes.data
    del a
    assert pool.usage() == (0, 256 * 1024)
    assert pool.empty(SHAPE).ctypes.data == address
    assert pool.empty((300, 200), np.float64).flags.c_contiguous


def test_any_view_keeps_the_block():
    pool = Pool()
    views = []
    for i in range(20):
        a = pool.empty(SHAPE)
        a[...] = i
        views.append(a.reshape(64, -1)[3:5, ::2].T if i % 2 else a[0, 1:2].view(np.int32))
    del a
    gc.collect()
    for i, view in enumerate(views):
        assert (view.view(np.float32) == i).all()
    assert len({v.__array_interface__["data"][0] for v in views}) == 20
    assert pool.usage() == (20 * 256 * 1024, 0)
    del view
    views.clear()
    assert pool.usage()[0] == 0


def test_an_array_in_a_reference_cycle_returns_its_block():
    pool = Pool()
    cycle = [pool.empty(SHAPE)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert pool.usage() == (0, 256 * 1024)


def test_small_and_empty_arrays_do_not_use_the_pool():
    pool = Pool()
    a, b = pool.empty((1, 4, 8, 8)), pool.empty((0, 64, 512, 512))
    assert a.nbytes < SMALL
    assert b.size == 0
    assert pool.usage() == (0, 0)


def test_a_block_of_at_most_twice_the_size_is_taken():
    pool = Pool()
    a = pool.empty((1, 64, 64, 64))
    address = a.ctypes.data
    del a
    b = pool.empty((1, 40, 64, 64))
    assert b.ctypes.data == address
    del b
    c = pool.empty((1, 8, 64, 64))
    assert c.ctypes.data != address


def test_idle_memory_is_bounded_by_the_largest_need():
    pool = Pool()
    for megabytes in range(1, 200, 3):  # every size is new, each array dies at once
        pool.empty((megabytes, 1024 * 1024), np.uint8)
        live, idle = pool.usage()
        assert live + idle <= 1.25 * 2**20 * (megabytes + 1) + 64 * 2**20
    pool.trim()
    assert pool.usage() == (0, 0)


def test_threads_never_share_a_block():
    pool, failures = Pool(), []

    def work(number):
        for _ in range(200):
            a, b = pool.empty(SHAPE), pool.empty(SHAPE)
            a[...], b[...] = number, -number
            if not ((a == number).all() and (b == -number).all()):
                failures.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


FORK = """
import os
from chainsight.core.kernels.memory import Pool
pool = Pool()
used, idle = pool.empty((1, 64, 64, 64)), pool.empty((1, 64, 32, 32))
used[...], address = 1, idle.ctypes.data
del idle
child = os.fork()
if child == 0:
    used[...], pool.empty((1, 64, 32, 32))[...] = 2, 2
    os._exit(0)
os.waitpid(child, 0)
idle = pool.empty((1, 64, 32, 32))
print(used.max(), idle.ctypes.data == address, idle.max())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
def test_a_forked_child_has_its_own_copy():
    run = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["1.0", "True", "0.0"]


def test_a_lasting_pool_keeps_what_its_arrays_left():
    pool = Pool(lasting=True)
    with using(pool):
        a = empty((64 << 20,), np.uint8)
        thread = threading.Thread(target=lambda: empty(SHAPE))
        thread.start()
        thread.join()
    assert pool.usage() == (64 << 20, 0)  # other threads take theirs elsewhere
    del a
    for megabytes in (200, 600):  # an ordinary pool would give the smaller ones back
        pool.empty((megabytes << 20,), np.uint8)
    assert pool.usage() == (0, 864 << 20)


def test_an_alias_sees_the_memory_and_lets_it_go():
    pool, other = Pool(lasting=True), np.arange(4.0)
    a = pool.empty(SHAPE)
    a[...] = 1
    part = a[:, 3:7, ::2]
    alias = pool.alias(part)
    assert alias.shape == part.shape
    assert alias.strides == part.strides
    alias[0, 1, 2, 3] = 5
    assert a[0, 4, 4, 3] == 5
    assert pool.alias(other) is other
    assert Pool().alias(a) is a
    del a, part
    assert pool.usage() == (0, 256 * 1024)
