"""What a bug report needs to say about the machine."""

from __future__ import annotations

import os
import platform
from importlib import metadata


def show_config() -> str:
    """Print, and return, the versions, the kernels in use, the threads and the devices: paste it into a bug report.

    >>> "chainsight" in show_config()  # doctest: +ELLIPSIS
    chainsight ...
    True
    """
    from . import __version__, core

    kernels = core.kernels
    lines = [f"chainsight {__version__}, Python {platform.python_version()}, {platform.platform()}"]
    for name in ("numpy", "opencv-python-headless", "opencv-python", "pillow", "cupy-cuda12x", "cupy-cuda13x"):
        try:
            lines.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    version = kernels.library_version()
    lines.append(f"kernels: {kernels.backend_name()}" + (f" {version}" if version else ""))
    lines.append(f"threads: {kernels.get_num_threads()} of {os.cpu_count()} processors")
    lines.append(f"devices: cpu ({_processor()}){_gpus()}")
    settings = ("CHAINSIGHT_", "OMP_", "GOMP_", "OPENBLAS_", "MKL_", "DNNL_", "ONEDNN_")
    lines += [f"{key}={value}" for key, value in sorted(os.environ.items()) if key.startswith(settings)]
    text = "\n".join(lines)
    print(text)
    return text


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            named = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        named = []
    return named[0] if named else platform.processor() or platform.machine()


def _gpus() -> str:
    try:
        import cupy
    except ImportError:
        return ""
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"; CuPy {cupy.__version__} finds no GPU: {error}"
    return "".join(f", cuda:{i} ({cupy.cuda.runtime.getDeviceProperties(i)['name'].decode()})" for i in range(count))
