"""Batches from a data set: items are read and transformed by threads ahead of the consumer, in a reproducible order."""

from __future__ import annotations

import atexit
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Protocol

import numpy as np


class Indexed(Protocol):
    """Anything with a length and items by index: a data set, a list."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


Transform = Callable[[Any, np.random.Generator, Callable[[], Any]], Any]


class ItemError(RuntimeError):
    """Reading or transforming one item failed; ``index`` and ``source`` tell which, ``__cause__`` tells why."""

    def __init__(self, index: int, source: str, cause: BaseException) -> None:
        named = f" ({source})" if source else ""
        super().__init__(f"item {index}{named} could not be loaded: {type(cause).__name__}: {cause}")
        self.index, self.source = index, source


class _Failure:
    """An exception in the place of the item that a worker could not make."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Batch:
    """The slots of one batch under way; the worker that fills the last slot collates."""

    def __init__(self, indices: list[int]) -> None:
        self.indices = indices
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = threading.Event()
        self._items: list[Any] = [None] * len(indices)
        self._missing = len(indices)
        self._lock = threading.Lock()

    def fill(self, slot: int, item: Any, collate: Callable[[list[Any]], Any]) -> None:
        with self._lock:
            self._items[slot] = item
            self._missing -= 1
            if self._missing:
                return
        items, self._items = self._items, []
        self.error = next((item.error for item in items if isinstance(item, _Failure)), None)
        if self.error is None:
            try:
                self.result = collate(items)
            except BaseException as error:
                self.error = error
        self.done.set()


class Loader:
    """Batches of transformed items, read ahead by threads; the same for any number of workers.

    - ``dataset``: items by index; read from several threads at once when ``workers`` > 1.
    - ``transform(item, rng, others)``: ``rng`` is seeded by (seed, epoch, index) alone, so an item's content depends
      neither on the workers nor on the batch size; ``others()`` draws another raw item with that same generator.
    - ``collate``: makes a batch of the list of transformed items; runs in the workers too.
    - ``workers``: threads; 0 does the work in the caller. Threads and not processes: decoders and NumPy let go of the
      interpreter lock, a fork after OpenMP has run hangs, and threads behave alike on every operating system.

    At most ``prefetch + 1`` batches exist at a time, however slow the consumer. The state of a run is (epoch, batch):
    ``loader.epoch(3, start=17)`` goes on exactly where a stopped run was, without reading what came before.

    Raises ItemError, naming the item, in the consumer when it comes to the batch whose item failed.

    >>> loader = Loader(range(5), 2, transform=lambda item, rng, others: 10 * item)
    >>> list(loader.epoch(0))
    [[0, 10], [20, 30], [40]]
    >>> list(loader.epoch(0, start=2))
    [[40]]
    """

    def __init__(
        self,
        dataset: Indexed,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        workers: int = 2,
        transform: Transform | None = None,
        collate: Callable[[list[Any]], Any] = list,
        drop_last: bool = False,
    ) -> None:
        for name, value, least in (("batch_size", batch_size, 1), ("seed", seed, 0), ("workers", workers, 0)):
            if value < least:
                raise ValueError(f"Loader: expected {name} of at least {least}, got {value}")
        self.dataset, self.batch_size, self.workers = dataset, batch_size, workers
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.transform, self.collate = transform, collate
        # Two batches cover the jitter of decoding times; more only so that small batches still occupy every worker.
        self.prefetch = max(2, -(-workers // batch_size) + 1)

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        full, rest = divmod(len(self.dataset), self.batch_size)
        return full + bool(rest and not self.drop_last)

    def order(self, epoch: int) -> list[int]:
        """The indices of an epoch's items, in order."""
        if not self.shuffle:
            return list(range(len(self.dataset)))
        return [int(i) for i in self._rng(epoch).permutation(len(self.dataset))]

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """The batches of epoch number ``epoch`` (counted from 0), from batch ``start`` on."""
        if epoch < 0 or not 0 <= start <= len(self):
            raise ValueError(f"Loader: expected epoch >= 0 and 0 <= start <= {len(self)}, got {epoch} and {start}")
        order = self.order(epoch)
        batches = [order[i * self.batch_size : (i + 1) * self.batch_size] for i in range(start, len(self))]
        return self._ahead(epoch, batches) if self.workers else self._here(epoch, batches)

    def _rng(self, *key: int) -> np.random.Generator:
        # A spawn key keeps (epoch,) and (epoch, 0) apart, which plain entropy, padded with zeros, would not.
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=key))

    def _item(self, epoch: int, index: int) -> Any:
        item = None
        try:
            item = self.dataset[index]
            if self.transform is None:
                return item
            rng = self._rng(epoch, index)
            return self.transform(item, rng, lambda: self.dataset[int(rng.integers(len(self.dataset)))])
        except Exception as error:
            raise ItemError(index, str(getattr(item, "source", "")), error) from error

    def _here(self, epoch: int, batches: list[list[int]]) -> Iterator[Any]:
        for indices in batches:
            yield self.collate([self._item(epoch, index) for index in indices])

    def _ahead(self, epoch: int, batches: list[list[int]]) -> Iterator[Any]:
        jobs: queue.SimpleQueue[tuple[_Batch, int] | None] = queue.SimpleQueue()
        stopping = threading.Event()
        # Daemons, so that one stuck in a read never keeps a finished program alive.
        threads = [
            threading.Thread(target=self._work, args=(epoch, jobs, stopping), name=f"loader-{i}", daemon=True)
            for i in range(self.workers)
        ]

        def close() -> None:
            stopping.set()
            for _ in threads:
                jobs.put(None)
            deadline = time.monotonic() + 1  # an item stuck in a read must not hold up the consumer's own exit
            for thread in threads:
                if thread.is_alive():
                    thread.join(timeout=max(0.0, deadline - time.monotonic()))

        waiting: deque[_Batch] = deque()

        def submit(count: int) -> None:
            for indices in islice(remaining, count):
                waiting.append(_Batch(indices))
                for slot in range(len(indices)):
                    jobs.put((waiting[-1], slot))

        remaining = iter(batches)
        # When an uncaught exception ends the program, nobody closes this generator: the exit handler does.
        atexit.register(close)
        try:
            for thread in threads:
                thread.start()
            submit(self.prefetch)
            while waiting:
                batch = waiting.popleft()
                submit(1)
                # A wait without timeout cannot be interrupted by Ctrl-C on Windows.
                while not batch.done.wait(timeout=0.2):
                    pass
                if batch.error is not None:
                    raise batch.error
                yield batch.result
        finally:
            atexit.unregister(close)
            close()

    def _work(self, epoch: int, jobs: queue.SimpleQueue[tuple[_Batch, int] | None], stopping: threading.Event) -> None:
        while (job := jobs.get()) is not None and not stopping.is_set():
            batch, slot = job
            item: Any
            try:
                item = self._item(epoch, batch.indices[slot])
            except BaseException as error:  # whatever it is, it belongs to the consumer: a dead worker would hang it
                item = _Failure(error)
            batch.fill(slot, item, self.collate)
            del job, batch, item  # a worker that waits for its next job must not keep the last batch in memory
