"""A Dockerfile is read as Docker reads it, and executed without touching what is outside a folder."""

import re
import sys
from pathlib import Path

import pytest

from tests.deployment import ROOT
from tests.dockerfile import Builder, Image, Step, StepFailed, Unsupported, context, parse, runnable

TEXT = """\
# syntax=docker/dockerfile:1
ARG PYTHON_IMAGE=python:3.13-slim
FROM ${PYTHON_IMAGE} AS build
ARG WHO=world
ENV GREETING="hello $WHO" \\
    # A comment between the lines of one instruction.
    PLACE=/opt/made
WORKDIR /opt/made
COPY one.txt two ./
RUN awk '/^[a-z]/ {take = /^(one|two)/} take' one.txt > chosen.txt \\
    && python -c "import os; print(os.environ['GREETING'], os.environ['PLACE'])" > /opt/made/said.txt

FROM ${PYTHON_IMAGE} as runtime
RUN groupadd --system x \\
    && useradd --system x
ENV PATH=/opt/made/bin:$PATH
USER 10001:10001

FROM runtime AS core
COPY --from=build /opt/made /opt/made
WORKDIR /opt/made/deep
WORKDIR er
HEALTHCHECK --interval=30s CMD ["python", "-c", "raise SystemExit(1)"]
ENTRYPOINT ["python"]
CMD ["-c", "print('served')"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository with a Dockerfile and more than it may see."""
    where = tmp_path / "repository"
    (where / "two" / "deeper" / "__pycache__").mkdir(parents=True)
    (where / "Dockerfile").write_text(TEXT, "utf-8")
    (where / "Dockerfile.dockerignore").write_text("*\n!one.txt\n!two\n**/__pycache__\n**/*.pyc\n", "utf-8")
    (where / "one.txt").write_text("one\nthree\ntwo\n", "utf-8")
    for name in (
        "secret.txt",
        "two/inner.txt",
        "two/old.pyc",
        "two/deeper/deepest.txt",
        "two/deeper/__pycache__/x",
    ):
        (where / name).write_text(name, "utf-8")
    return where


def _build(folder: Path, name: str = "core") -> Image:
    scratch = folder.parent / "scratch"
    scratch.mkdir()
    return Builder(folder, "Dockerfile", scratch, python=sys.executable).build(name)


def test_stages_have_their_bases_and_instructions_their_lines() -> None:
    build, runtime, core = parse(TEXT)
    assert [build.base, runtime.base, core.base] == ["python:3.13-slim", "python:3.13-slim", "runtime"]
    assert [step.word for step in build.steps] == ["ARG", "ENV", "WORKDIR", "COPY", "RUN"]
    assert build.steps[1] == Step("ENV", 'GREETING="hello $WHO" PLACE=/opt/made', 5)
    assert core.steps[-1] == Step("CMD", """["-c", "print('served')"]""", 25)


def test_steps_make_what_they_say_below_the_folder(folder: Path) -> None:
    image = _build(folder)
    made = image.path("/opt/made")
    assert made.is_relative_to(folder.parent)
    assert (made / "chosen.txt").read_text("utf-8") == "one\ntwo\n"
    # A path of the image is where it really is; the clean environment has nothing of this process.
    assert (made / "said.txt").read_text("utf-8") == f"hello world {made}\n"
    assert image.left_out == ["groupadd", "useradd", "USER"]
    assert image.workdir == "/opt/made/deep/er"
    assert image.run([*image.entrypoint, *image.command]) == ("served\n", "")
    assert image.run(image.healthcheck, status=1) == ("", "")
    with pytest.raises(StepFailed, match="ended with 1"):
        image.run(image.healthcheck)
    with pytest.raises(StepFailed, match="not in the image"):
        image.run(["dify-memory"])


def test_only_what_is_not_ignored_is_copied(folder: Path) -> None:
    copied = {"one.txt", "inner.txt", "deeper/deepest.txt"}
    made = _build(folder, "build").path("/opt/made")
    found = {path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file()}
    assert found == copied | {"chosen.txt", "said.txt"}


@pytest.mark.parametrize("source", ["secret.txt", "two/old.pyc", "not-there", "two/deeper/__pycache__"])
def test_a_copy_of_what_does_not_reach_the_build_fails(folder: Path, source: str) -> None:
    (folder / "Dockerfile").write_text(f"FROM x AS core\nCOPY {source} /opt/\n", "utf-8")
    with pytest.raises(StepFailed, match="line 2"):
        _build(folder)


def test_a_step_that_fails_is_told_with_what_it_said(folder: Path) -> None:
    (folder / "Dockerfile").write_text("FROM x AS core\nRUN python -c 'raise SystemExit(\"no\")'\n", "utf-8")
    with pytest.raises(StepFailed, match=r"ended with 1: no"):
        _build(folder)


def test_variables_of_this_process_do_not_reach_the_image_but_those_of_the_index_reach_its_steps(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMORY_API_KEY", "x")
    monkeypatch.setenv("PIP_INDEX_URL", "http://index/opt/x")
    show = "python -c \"import os; print(*sorted(os.environ.items()), sep='\\n')\" > /opt/env.txt"
    (folder / "Dockerfile").write_text(f"FROM x AS core\nWORKDIR /opt\nRUN {show}\n", "utf-8")
    image = _build(folder)
    shown = image.path("env.txt").read_text("utf-8")
    assert "('PIP_INDEX_URL', 'http://index/opt/x')" in shown
    assert "MEMORY_API_KEY" not in shown
    later, _ = image.run(["python", "-c", "import os; print(*os.environ)"])
    assert "PIP_INDEX_URL" not in later


@pytest.mark.parametrize(
    "step",
    [
        "RUN apt-get update",
        "RUN pip install x && curl http://x",
        "RUN rm -r /etc/hosts",
        "RUN python -m venv '/home/x'",
        "RUN X=1 make",
        "RUN --mount=type=cache pip install x",
        'RUN ["pip"]',
        "RUN python <<EOF",
        "COPY --chown=1:1 one.txt /opt/",
        "COPY *.txt /opt/",
        "COPY one.txt two /opt",
        "ADD one.txt /opt/",
        "ENV A=$UNKNOWN",
        "ENV A=${PATH:-x}",
        "ENV A",
        "CMD serve",
        "VOLUME /data",
        "RUN python \\",
    ],
)
def test_what_is_not_known_is_refused(folder: Path, step: str) -> None:
    (folder / "Dockerfile").write_text(f"FROM x AS core\n{step}\n", "utf-8")
    with pytest.raises(Unsupported, match="line 2"):
        _build(folder)


@pytest.mark.parametrize(
    "line",
    [
        "python -V; reboot now",
        "python -V & useradd x",
        "python -V&&reboot",
        "python -V &&& reboot",
        "rm -r /opt/x || curl x",
        "pip list | sh",
        "python $(whoami)",
        'python "$(whoami)"',
        "python `whoami`",
        'python "`whoami`"',
        "python <(whoami)",
        "python -V\nreboot",
        "python \\' ; reboot '",
        "python $'\\'' ; reboot '",
        "python 'x",
        "rm -r ~/z",
        "python -V >~/z",
        "rm -r ../../y",
        "rm -r '../y'",
        "rm -r .''./y",
        "rm -r /opt/../etc",
        "rm -r //etc",
        "rm -r /''etc",
        "rm -r /*",
        "rm -r {/etc,/opt}",
    ],
)
def test_a_line_that_may_do_more_than_its_commands_is_refused(line: str) -> None:
    with pytest.raises(Unsupported, match="line 7"):
        runnable(Step("RUN", line, 7))


@pytest.mark.parametrize(
    "line",
    [
        "python -c 'import os; print(1 & 2 | 3)'",
        "python -c \"import os; print('a && b')\" > /opt/x 2> /dev/null",
        "awk '/^[a-z]/ {take = /^(a|b)/} take' a > b",
        "rm -r $HOME/x /opt/lib/python3*/x",
        "pip install 'x~=1' y~=2 .",
    ],
)
def test_what_is_quoted_is_no_command(line: str) -> None:
    assert runnable(Step("RUN", f"{line} && useradd x && python -V", 7)) == (
        f"{line} && python -V",
        ["useradd"],
    )


@pytest.mark.parametrize("text", ["FROM x\n", "RUN pip\nFROM x AS y\n", "FROM ${X} AS y\n"])
def test_a_file_that_is_read_otherwise_by_docker_is_refused(text: str) -> None:
    with pytest.raises(Unsupported, match="line 1"):
        parse(text)


def test_every_command_of_our_dockerfile_can_be_executed_without_docker() -> None:
    stages = parse((ROOT / "deploy/Dockerfile").read_text("utf-8"))
    ran = [runnable(step) for stage in stages for step in stage.steps if step.word == "RUN"]
    assert [left_out for _, left_out in ran if left_out] == [["groupadd", "useradd"]]
    assert len([command for command, _ in ran if command]) >= 5


def test_nothing_but_what_our_image_is_made_of_reaches_its_build() -> None:
    files = set(context(ROOT, (ROOT / "deploy/Dockerfile.dockerignore").read_text("utf-8")))
    tops = {path.partition("/")[0] for path in files}
    assert tops == {
        "requirements.txt",
        "requirements-local.txt",
        "pyproject.toml",
        "README.md",
        "LICENSE",
    } | {
        "service",
        "deploy",
    }
    assert {path for path in files if path.startswith("deploy/")} == {
        f"deploy/docker/{path.name}" for path in (ROOT / "deploy/docker").iterdir() if path.is_file()
    }
    assert "service/adapters/lua/accept.lua" in files
    assert not [path for path in files if path.endswith(".pyc") or ".env" in path]


def test_the_image_has_no_bytecode_of_what_it_took_out_and_checks_that_it_is_not_missed() -> None:
    text = (ROOT / "deploy/Dockerfile").read_text("utf-8")
    build = next(stage for stage in parse(text) if stage.name == "build")
    installing, compiling = [step.rest for step in build.steps if "pip install" in step.rest]
    assert all("--no-compile" in step for step in (installing, compiling))
    removed = re.findall(r"rm -r /opt/venv/lib/python3\*/site-packages/(\S+)", installing)
    assert [path.partition("/")[0] for path in removed] == ["litellm", *["phonenumbers"] * 3]
    # After the bytecode, so that it writes what was left out of it.
    assert compiling.index("compileall") < compiling.index("import litellm, service.app, service.worker")
    assert "litellm.completion(" in compiling
    assert "PYTHONDONTWRITEBYTECODE" not in str(build)
