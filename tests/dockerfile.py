"""A Dockerfile without Docker: its stages, and their steps executed in a folder that stands for the root.

    image = Builder(folder, "deploy/Dockerfile", scratch, python=sys.executable).build("core")
    image.run(["dify-memory", "--version"])

No container: commands run as whoever starts them, with this machine's tools. Of the image there is what the
steps make below `_OURS`; paths there are rewritten, in `RUN` and in variables. What cannot be done so is left
out where `_LEFT_OUT` names it, and `Unsupported` otherwise: nothing is passed over in silence. Needs no more
than the standard library.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import translate
from pathlib import Path
from typing import Final

# Folders of the image that exist below the folder that stands for it. Any other path is this machine's.
_OURS: Final = ("/opt", "/src", "/tmp", "/usr/local")
_OTHERS: Final = frozenset({"/dev/null"})
_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_COMMANDS: Final = frozenset({"awk", "pip", "python", "rm"})
# Commands and instructions without an effect here, and why.
_LEFT_OUT: Final[Mapping[str, str]] = {
    "groupadd": "would add a group to this machine",
    "useradd": "would add a user to this machine",
    "USER": "only root can become another user",
    "EXPOSE": "only documents a port",
    "STOPSIGNAL": "only a container is stopped by it",
}
# How pip finds its index and trusts it: the environment's business, not the image's.
_PASSED_ON: Final = re.compile(r"PIP_\w+|SSL_CERT_\w+|\w+_CA_BUNDLE|\w+_proxy|\w+_PROXY")
_STARTS: Final = r"(?<![^\s=:;\"'(>])"
_OURS_PATH: Final = re.compile(rf"{_STARTS}(?=(?:{'|'.join(_OURS)})(?:[/\s:;\"')]|$))")
_ANY_PATH: Final = re.compile(rf"{_STARTS}/[A-Za-z][^\s:;\"')]*")
# The same outside quotes, where no regular expression of awk's stands.
_BARE_PATH: Final = re.compile(rf"{_STARTS}/[^\s:;\"')]*")
_ASSIGNED: Final = re.compile(r"\w+=")
_QUOTED: Final = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)
# Outside quotes: what makes more of a line than commands joined by `&&`, or names what is not written there.
_CLEVER: Final = re.compile(r"""[;|`()\\\n"']|(?<!&)&(?!&)|(?<!\$)\{|\$\0|(?:^|[\s=:<>])~""")


class Unsupported(Exception):
    """Something in a Dockerfile that is not done here; the message has its line."""


class StepFailed(Exception):
    """A command ended otherwise than it should; the message has the end of what it said."""


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction: its word in capitals, the rest in one line without comments, and its line's number."""

    word: str
    rest: str
    line: int


@dataclass(frozen=True, slots=True)
class Stage:
    """What stands between two `FROM`; `base` is an earlier stage's name or an image."""

    name: str
    base: str
    steps: tuple[Step, ...]


def parse(text: str) -> tuple[Stage, ...]:
    """The stages in their order, arguments of `FROM` at their defaults."""
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for step in _steps(text):
        if step.word == "FROM":
            found = re.fullmatch(r"(\S+) AS (\S+)", step.rest, re.IGNORECASE)
            if found is None:
                raise Unsupported(f"line {step.line}: FROM without a stage's name")
            stages.append(Stage(found[2], _expanded(found[1], arguments, step), ()))
        elif stages:
            stages[-1] = replace(stages[-1], steps=(*stages[-1].steps, step))
        elif step.word == "ARG":
            arguments |= _argument(step)
        else:
            raise Unsupported(f"line {step.line}: {step.word} before the first FROM")
    return tuple(stages)


def _steps(text: str) -> Iterator[Step]:
    parts: list[str] = []
    begins = 0
    for number, line in enumerate(text.splitlines(), 1):
        # Comments and empty lines also stand between the lines of one instruction.
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        begins = begins if parts else number
        parts.append(line.strip().removesuffix("\\").strip())
        if line.rstrip().endswith("\\"):
            continue
        word, _, rest = " ".join(parts).partition(" ")
        if "<<" in rest:
            raise Unsupported(f"line {begins}: a here-document")
        yield Step(word.upper(), rest.strip(), begins)
        parts = []
    if parts:
        raise Unsupported(f"line {begins}: ends with a backslash")


def _argument(step: Step) -> dict[str, str]:
    name, _, value = step.rest.partition("=")
    return {name: value}


def _expanded(text: str, variables: Mapping[str, str], step: Step) -> str:
    """`$NAME` and `${NAME}` replaced; anything cleverer, or an unknown name, is refused."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in variables:
            raise Unsupported(f"line {step.line}: {found[0]} is not known")
        return variables[name]

    return re.sub(r"\$(?:(\w+)|\{([^}]*)\})", value, text)


def runnable(step: Step) -> tuple[str, list[str]]:
    """The command of a `RUN` that can be executed here ("" if none), and what of it is left out."""
    if step.rest.startswith(("--", "[")):
        raise Unsupported(f"line {step.line}: RUN with an option or a list")
    kept: list[str] = []
    left_out: list[str] = []
    for command, bare in _commands(step):
        words = command.split()
        while words and _ASSIGNED.match(words[0]):
            words.pop(0)
        name = words[0].rpartition("/")[2] if words else ""
        if name in _LEFT_OUT:
            left_out.append(name)
            continue
        if name not in _COMMANDS:
            raise Unsupported(f"line {step.line}: {name or command} is not known to be harmless here")
        if any(".." in word for word in shlex.split(command)):
            raise Unsupported(f"line {step.line}: .. may lead to this machine's")
        for path in (*_ANY_PATH.findall(command), *_BARE_PATH.findall(bare)):
            if path not in _OTHERS and not _OURS_PATH.match(path):
                raise Unsupported(f"line {step.line}: {path} would be this machine's")
        kept.append(command)
    return " && ".join(kept), left_out


def _commands(step: Step) -> Iterator[tuple[str, str]]:
    """What `&&` joins, each also with zeros in the place of what is quoted."""
    bare = _QUOTED.sub(lambda found: "\0" * len(found[0]), step.rest)
    # Double quotes do not keep the shell from executing these.
    inside = [text for text in _QUOTED.findall(step.rest) if text[0] == '"' and re.search(r"`|\$\(", text)]
    if clever := [*inside, *_CLEVER.findall(bare)]:
        raise Unsupported(f"line {step.line}: RUN with {clever[0]!r}")
    begins = 0
    for joint in (*re.finditer("&&", bare), None):
        ends = joint.start() if joint else len(bare)
        yield step.rest[begins:ends].strip(), bare[begins:ends].strip()
        begins = joint.end() if joint else ends


def context(folder: Path, ignored: str) -> Iterator[str]:
    """The files below `folder` that reach a build, by their paths there; `ignored` is a .dockerignore."""
    rules: list[tuple[bool, str, re.Pattern[str]]] = []
    for line in ignored.splitlines():
        if (rule := line.strip()) and not rule.startswith("#"):
            wanted = rule.startswith("!")
            pattern = rule.removeprefix("!").strip("/")
            rules.append((wanted, pattern, _pattern(pattern)))

    def is_in(path: str) -> bool:
        parts = path.split("/")
        above = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
        for wanted, _, pattern in reversed(rules):
            if any(pattern.fullmatch(each) for each in above):
                return wanted
        return True

    def may_hold(path: str) -> bool:
        return is_in(path) or any(wanted and rule.startswith(f"{path}/") for wanted, rule, _ in rules)

    for where, folders, files in os.walk(folder):
        here = Path(where).relative_to(folder)
        folders[:] = sorted(name for name in folders if may_hold((here / name).as_posix()))
        yield from (path for name in sorted(files) if is_in(path := (here / name).as_posix()))


def _pattern(rule: str) -> re.Pattern[str]:
    """As Docker reads it: `*` stays within a folder's name, `**/` is any number of folders."""
    deep = rule.startswith("**/")
    if "**" in rule.removeprefix("**/"):
        raise Unsupported(f"{rule} in the .dockerignore")
    flat = translate(rule.removeprefix("**/")).replace(".*", "[^/]*")
    return re.compile(rf"(?:.*/)?{flat}" if deep else flat, re.DOTALL)


@dataclass(slots=True)
class Image:
    """What a stage has made: the folder of its files while it is not at work, and its configuration."""

    root: Path
    env: dict[str, str] = field(default_factory=lambda: {"PATH": _PATH, "HOME": "/tmp"})
    arguments: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    healthcheck: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def path(self, inside: str) -> Path:
        """Where a path of the image is now."""
        return self.root / os.path.normpath(Path(self.workdir) / inside).lstrip("/")

    def run(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, status: int = 0
    ) -> tuple[str, str]:
        """What the command prints to standard output and standard error; `env` is added to the image's.

        Raises StepFailed if it ends with another status, or if there is no such command.
        """
        here = {name: self._moved(value) for name, value in self.env.items()} | dict(env or {})
        program = shutil.which(command[0], path=here["PATH"])
        if program is None:
            raise StepFailed(f"{command[0]} is not in the image")
        done = subprocess.run(
            [program, *command[1:]],
            cwd=self.path("."),
            env=here,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=1800,
        )
        if done.returncode != status:
            told = (done.stdout + done.stderr).strip()[-1500:]
            named = " ".join(shlex.join(command).split())[:200]
            raise StepFailed(f"{named} ended with {done.returncode}: {told}")
        return done.stdout, done.stderr

    def shell(self, command: str, env: Mapping[str, str]) -> None:
        """Execute a `RUN`."""
        self.run(["sh", "-c", self._moved(command)], env={**self.arguments, **env})

    def _moved(self, text: str) -> str:
        return _OURS_PATH.sub(str(self.root), text)


class Builder:
    """Builds stages of a Dockerfile below `scratch`, an empty folder; `python` is what the base has."""

    def __init__(self, folder: Path, dockerfile: str, scratch: Path, *, python: str) -> None:
        text = (folder / dockerfile).read_text("utf-8")
        self._stages = {stage.name: stage for stage in parse(text)}
        self._folder = folder
        self._files = list(context(folder, (folder / f"{dockerfile}.dockerignore").read_text("utf-8")))
        self._scratch = scratch
        self._python = python
        self._built: dict[str, Image] = {}
        self._passed_on = {name: value for name, value in os.environ.items() if _PASSED_ON.fullmatch(name)}

    def build(self, name: str) -> Image:
        """The stage's image, at its place. Every other stage's is out of the way from then on."""
        image = self._stage(name)
        self._put(image, self._scratch / "image")
        return image

    def _stage(self, name: str) -> Image:
        if name in self._built:
            return self._built[name]
        stage = self._stages[name]
        sources = {
            found[1]: self._stage(found[1])
            for step in stage.steps
            if step.word == "COPY" and (found := re.match(r"--from=(\S+)", step.rest))
        }
        base = self._stage(stage.base) if stage.base in self._stages else None
        # At work every stage has the same folder, as in Docker: scripts have the path of their interpreter.
        image = self._new(base)
        for step in stage.steps:
            self._execute(image, step, sources)
        self._put(image, self._scratch / name)
        self._built[name] = image
        return image

    def _new(self, base: Image | None) -> Image:
        root = self._scratch / "image"
        if base is not None:
            shutil.copytree(base.root, root, symlinks=True)
            return replace(base, root=root, env=dict(base.env), arguments={}, left_out=list(base.left_out))
        for folder in ("tmp", "usr/local/bin"):
            (root / folder).mkdir(parents=True)
        # No link: an interpreter looks for its library beside the name that it was called by.
        script = root / "usr/local/bin/python"
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(self._python)} "$@"\n', "utf-8")
        script.chmod(0o755)
        return Image(root)

    def _put(self, image: Image, place: Path) -> None:
        if image.root != place:
            image.root.rename(place)
            image.root = place

    def _execute(self, image: Image, step: Step, sources: Mapping[str, Image]) -> None:
        match step.word:
            case "COPY":
                self._copy(image, step, sources)
            case "RUN":
                command, left_out = runnable(step)
                image.left_out += left_out
                if command:
                    image.shell(command, self._passed_on)
            case word if word in _LEFT_OUT:
                image.left_out.append(word)
            case _:
                _configure(image, step)

    def _copy(self, image: Image, step: Step, sources: Mapping[str, Image]) -> None:
        """Files go into the folder or to the name, of a folder what it holds: as Docker does it."""
        words = step.rest.split()
        stage = words.pop(0).removeprefix("--from=") if words[0].startswith("--from=") else ""
        *names, target = words
        if not names or any(re.match(r"--|\[|.*[*?$]", word) for word in words):
            raise Unsupported(f"line {step.line}: COPY with another option, a list, a pattern or a variable")
        is_folder = target.endswith("/") or target == "."
        if len(names) > 1 and not is_folder:
            raise Unsupported(f"line {step.line}: COPY of several to one name")
        place = image.path(target)
        for name in names:
            below = sources[stage].path(name) if stage else self._folder / name
            if below.is_dir() and stage:
                shutil.copytree(below, place, symlinks=True, dirs_exist_ok=True)
                continue
            pairs = (
                [(below, place / below.name if is_folder else place)]
                if below.is_file()
                else [
                    (self._folder / path, place / Path(path).relative_to(name))
                    for path in self._files
                    if Path(path).is_relative_to(name)
                ]
            )
            if not pairs or (below.is_file() and not stage and Path(name).as_posix() not in self._files):
                raise StepFailed(f"line {step.line}: {name} is not there, or ignored")
            for file, copy in pairs:
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, copy)


def _configure(image: Image, step: Step) -> None:
    known = {**image.arguments, **image.env}
    match step.word:
        case "ARG":
            image.arguments |= _argument(step)
        case "ENV":
            for word in shlex.split(step.rest):
                name, equals, value = word.partition("=")
                if not equals:
                    raise Unsupported(f"line {step.line}: ENV without an equals sign")
                image.env[name] = _expanded(value, known, step)
        case "WORKDIR":
            image.workdir = str(Path(image.workdir) / _expanded(step.rest, known, step))
            image.path(".").mkdir(parents=True, exist_ok=True)
        case "ENTRYPOINT":
            image.entrypoint, image.command = _list(step, step.rest), []
        case "CMD":
            image.command = _list(step, step.rest)
        case "HEALTHCHECK":
            image.healthcheck = _list(step, step.rest.partition("CMD ")[2])
        case word:
            raise Unsupported(f"line {step.line}: {word}")


def _list(step: Step, text: str) -> list[str]:
    """The list of words; a line for a shell is refused, since signals then do not reach the process."""
    try:
        words: list[str] = json.loads(text)
    except ValueError as exc:
        raise Unsupported(f"line {step.line}: {step.word} is not a list") from exc
    return words
