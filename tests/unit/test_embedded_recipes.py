"""What the local stack gives its children, and who may use its data directory."""

import os
import stat
from pathlib import Path

import pytest
from service.embedded import environment, sockets
from service.embedded.connection import Connection, read_connection, remove_connection, write_connection
from service.embedded.console import Console
from service.embedded.data_dir import DataDir
from service.embedded.errors import LocalStackError
from service.embedded.hindsight import llm_settings
from service.embedded.packages import folder
from service.embedded.supervisor import ChildSpec, Supervisor
from service.settings import Settings

CONNECTION = Connection(
    url="http://127.0.0.1:8000",
    api_key="dm_key",
    token_keys="local:sign",
    redis_url="unix:///x",
    cache_redis_url="unix:///y",
    hindsight_url="http://127.0.0.1:1",
    pids={"api": 7},
)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("model", "provider", "name"),
    [
        ("openai/gpt-4o-mini", "openai", "gpt-4o-mini"),
        ("gpt-4o-mini", "openai", "gpt-4o-mini"),
        ("openai/Qwen/Qwen3-8B", "openai", "Qwen/Qwen3-8B"),
        ("deepseek/deepseek-chat", "litellm", "deepseek/deepseek-chat"),
    ],
)
def test_the_llm_is_handed_to_hindsight_as_litellm_would_read_it(
    model: str, provider: str, name: str
) -> None:
    settings = Settings(llm_model=model, llm_api_key="secret", llm_base_url="http://llm/v1")
    assert llm_settings(settings) == {
        "HINDSIGHT_API_LLM_PROVIDER": provider,
        "HINDSIGHT_API_LLM_MODEL": name,
        "HINDSIGHT_API_LLM_API_KEY": "secret",
        "HINDSIGHT_API_LLM_BASE_URL": "http://llm/v1",
    }


def test_without_a_model_hindsight_has_no_llm_and_a_keyless_server_gets_some_key() -> None:
    assert llm_settings(Settings(llm_model=None)) == {"HINDSIGHT_API_LLM_PROVIDER": "none"}
    keyless = llm_settings(Settings(llm_model="openai/local", llm_base_url="http://llm/v1"))
    assert keyless["HINDSIGHT_API_LLM_API_KEY"]


def test_foreign_servers_see_neither_our_settings_nor_stray_ones_and_no_proxy() -> None:
    base = {
        "PATH": "/bin",
        "PGHOST": "elsewhere",
        "HINDSIGHT_API_WORKERS": "9",
        "MEMORY_API_KEY": "secret",
        "no_proxy": "intra.net",
    }
    assert environment.for_server(base, EXTRA="1") == {
        "PATH": "/bin",
        "EXTRA": "1",
        "no_proxy": "intra.net,127.0.0.1,localhost",
        "NO_PROXY": "intra.net,127.0.0.1,localhost",
    }
    assert environment.for_ours(base, MEMORY_API_KEY="new")["MEMORY_API_KEY"] == "new"


@pytest.mark.parametrize(
    ("path", "does_fit"),
    [
        ("/tmp/a/redis.sock", True),
        ("/" + "a" * 106, True),
        ("/" + "a" * 107, False),
        ("/tmp/two words/redis.sock", False),
        ("/tmp/数据/redis.sock", False),
        ("/tmp/50%/redis.sock", False),
    ],
)
def test_a_socket_path_must_fit_the_kernel_and_a_url(path: str, does_fit: bool) -> None:
    assert sockets.fits(Path(path)) is does_fit


def test_the_data_directory_is_private_and_remembers(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "data"
    with DataDir(root) as data:
        assert _mode(root) == 0o700
        secret = data.secret("api_key", prefix="dm_")
        data.remember_ports({"hindsight": 20_001})
        assert secret.startswith("dm_")
        assert len(secret) > 40
        assert _mode(root / "secrets.json") == 0o600
    with DataDir(root) as again:
        assert again.secret("api_key") == secret
        assert again.secret("other") != secret
        assert again.remembered_ports() == {"hindsight": 20_001}


def test_two_cannot_hold_one_data_directory(tmp_path: Path) -> None:
    with DataDir(tmp_path / "data"), pytest.raises(LocalStackError, match=f"process {os.getpid()}"):
        DataDir(tmp_path / "data").__enter__()
    with DataDir(tmp_path / "data"):
        pass


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "letter.txt").write_text("hello")
    with pytest.raises(LocalStackError, match="other files"):
        DataDir(tmp_path).__enter__()
    assert _mode(tmp_path) == 0o755
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


@pytest.mark.parametrize("content", ["{", "[]", "\udcff"])
def test_a_broken_secrets_file_is_named(tmp_path: Path, content: str) -> None:
    with DataDir(tmp_path / "data") as data:
        (data.root / "secrets.json").write_bytes(content.encode("utf-8", "surrogateescape"))
        with pytest.raises(LocalStackError, match=r"secrets\.json"):
            data.secret("api_key")


def test_a_connection_is_found_only_while_its_stack_lives(tmp_path: Path) -> None:
    root = tmp_path / "data"
    assert read_connection(root) is None
    with DataDir(root):
        assert read_connection(root) is None
        write_connection(root, CONNECTION)
        assert _mode(root / "connection.json") == 0o600
        assert read_connection(root) == CONNECTION
        remove_connection(root)
        remove_connection(root)
        assert read_connection(root) is None
        write_connection(root, CONNECTION)
    assert (root / "connection.json").exists()
    assert read_connection(root) is None, "a file that outlived its stack was believed"


def test_a_connection_shows_no_secret(tmp_path: Path) -> None:
    assert "dm_key" not in repr(CONNECTION)
    assert "sign" not in repr(CONNECTION)
    with DataDir(tmp_path / "data") as data:
        (data.root / "connection.json").write_text('{"url": "x", "api_key": "dm_key"}')
        with pytest.raises(LocalStackError) as refusal:
            read_connection(data.root)
        assert "dm_key" not in str(refusal.value)


def test_a_closed_terminal_does_not_stop_the_log(tmp_path: Path) -> None:
    def hung_up(line: str) -> None:
        raise BrokenPipeError(line)

    console = Console(hung_up, tmp_path / "up.log")
    console.say("first")
    console.say("第二")
    console.show("a key")
    lines = (tmp_path / "up.log").read_text("utf-8").splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == ["first", "第二"]


def test_a_missing_package_says_what_to_install() -> None:
    with pytest.raises(LocalStackError, match=r"pip install 'dify-memory\[local\]'"):
        folder("no_such_package_here")


def test_children_that_need_each_other_are_refused(tmp_path: Path) -> None:
    specs = [
        ChildSpec(name, ["true"], {}, tmp_path, tmp_path / "log", depends_on=(needs,))
        for name, needs in (("a", "b"), ("b", "a"))
    ]
    with pytest.raises(ValueError, match="depend on each other"):
        Supervisor(specs, say=print, on_pids=print)
