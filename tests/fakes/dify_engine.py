"""Runs a Dify app file in graphon, Dify's workflow engine, with the parts that lie outside it stubbed.

Real: the graph, the variables, the HTTP nodes, retries, error strategies, streaming. Stubbed: the model
(`StubModel`), the look-up of its plugin, and the sandbox, which runs code in a Python of its own.
"""

import asyncio
import copy
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar
from unittest.mock import patch

import yaml
from graphon.dsl import SlimDslNodeFactory, importer
from graphon.dsl.code_runtime import SandboxCodeExecutionError
from graphon.engine import Engine
from graphon.engine.filter import EngineEventFilterContext, ResponseStreamFilter, filter_engine_events
from graphon.engine_events.graph import (
    GraphRunFailedEvent,
    GraphRunPartialSucceededEvent,
    GraphRunSucceededEvent,
)
from graphon.engine_events.node import (
    NodeRunExceptionEvent,
    NodeRunFailedEvent,
    NodeRunRetryEvent,
    NodeRunStartedEvent,
    NodeRunStreamChunkEvent,
    NodeRunSucceededEvent,
)
from graphon.enums import BuiltinNodeTypes
from graphon.model_runtime.entities.common_entities import I18nObject
from graphon.model_runtime.entities.llm_entities import LLMResultChunk, LLMResultChunkDelta, LLMUsage
from graphon.model_runtime.entities.message_entities import AssistantPromptMessage, PromptMessage
from graphon.model_runtime.entities.model_entities import AIModelEntity, FetchFrom, ModelType
from graphon.nodes.code.code_node import CodeNode
from graphon.nodes.code.entities import CodeNodeData
from graphon.nodes.code.limits import CodeNodeLimits

Prompt = tuple[tuple[str, str], ...]

# `loads` takes its factory and its plan from globals of its module.
_LOADING = threading.Lock()


@cache
def _parsed(template: str) -> Any:
    """The file as data: graphon's own pure-Python reading of it takes longer than the whole run."""
    return yaml.load(template, Loader=yaml.CSafeLoader)


@dataclass
class StubModel:
    """A model that answers what `answer` makes of its prompt ((role, text) …), in pieces.

    `gate`, if set, is waited for between the first piece and the rest.
    """

    answer: Callable[[Prompt], str] = lambda prompt: f"Echo: {prompt[-1][1]}"
    prompts: list[Prompt] = field(default_factory=list)
    pieces: int = 3
    gate: threading.Event | None = None

    def stream(self, messages: Sequence[PromptMessage]) -> Generator[str, None, None]:
        """The answer in pieces whose joint is the answer."""
        prompt = tuple((message.role.value, message.get_text_content()) for message in messages)
        self.prompts.append(prompt)
        text = self.answer(prompt)
        size = max(1, -(-len(text) // self.pieces))
        for start in range(0, max(1, len(text)), size):
            yield text[start : start + size]
            if start == 0 and self.gate is not None:
                assert self.gate.wait(30), "The model's gate was never opened."


class _StubRuntime:
    """The model as graphon's nodes call it."""

    stop = None
    provider = "stub"

    def __init__(self, model: StubModel, name: str) -> None:
        self._model = model
        self.model_name = name
        self.parameters: Mapping[str, Any] = {}

    def get_model_schema(self) -> AIModelEntity:
        return AIModelEntity(
            model=self.model_name,
            label=I18nObject(en_us=self.model_name),
            model_type=ModelType.LLM,
            fetch_from=FetchFrom.CUSTOMIZABLE_MODEL,
            model_properties={},
        )

    def get_llm_num_tokens(self, prompt_messages: Sequence[PromptMessage]) -> int:
        return sum(len(message.get_text_content()) for message in prompt_messages)

    def invoke_llm(self, *, prompt_messages: Sequence[PromptMessage], **_: Any) -> Any:
        for index, piece in enumerate(self._model.stream(prompt_messages)):
            yield LLMResultChunk(
                model=self.model_name,
                prompt_messages=[],
                delta=LLMResultChunkDelta(
                    index=index,
                    message=AssistantPromptMessage(content=piece),
                    usage=LLMUsage.empty_usage(),
                ),
            )

    def is_structured_output_parse_error(self, error: Exception) -> bool:
        del error
        return False


class _LocalSandbox:
    """Dify's sandbox: `main` of the code, with JSON between it and the flow. `is_down` refuses all."""

    def __init__(self, is_down: bool) -> None:
        self._is_down = is_down

    def execute(self, *, language: str, code: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._is_down or language != "python3":
            raise SandboxCodeExecutionError("the sandbox is out of reach")
        program = f"{code}\nimport json, sys\nprint(json.dumps(main(**json.load(sys.stdin))))\n"
        texts = {name: getattr(value, "text", value) for name, value in inputs.items()}
        done = subprocess.run(
            [sys.executable, "-I", "-c", program],
            input=json.dumps(texts),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        if done.returncode:
            raise SandboxCodeExecutionError(done.stderr)
        result: Mapping[str, Any] = json.loads(done.stdout)
        return result

    def is_execution_error(self, error: Exception) -> bool:
        return isinstance(error, SandboxCodeExecutionError)


@dataclass
class NodeRun:
    """What became of one node; times are seconds since the start of the run."""

    started_s: float
    ended_s: float = -1
    status: str = "running"
    error: str = ""
    attempts: int = 1
    outputs: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Run:
    """One message through a flow.

    status: succeeded, partial-succeeded (a node failed and its default stood in) or failed.
    chunks: (seconds, text) as the user's screen would get them.
    """

    status: str = "failed"
    error: str = ""
    outputs: Mapping[str, Any] = field(default_factory=dict)
    chunks: list[tuple[float, str]] = field(default_factory=list)
    nodes: dict[str, NodeRun] = field(default_factory=dict)
    total_s: float = 0

    @property
    def streamed(self) -> str:
        """Everything that was streamed."""
        return "".join(text for _, text in self.chunks)

    @property
    def answer(self) -> str:
        """The answer of a Chatflow, or the output `answer` of a Workflow."""
        return str(self.outputs.get("answer", ""))


class DifyEngine:
    """One imported app: its environment variables filled in, its model replaced by a stub.

    `current` is the newest run, to be looked at while it goes on.
    """

    def __init__(
        self,
        template: str,
        environment: Mapping[str, str],
        model: StubModel | None = None,
        *,
        is_sandbox_down: bool = False,
    ) -> None:
        self.model = model or StubModel()
        flow = copy.deepcopy(_parsed(template))
        self.mode: str = flow["app"]["mode"]
        for variable in flow["workflow"]["environment_variables"]:
            variable["value"] = environment.get(variable["name"], variable["value"])
        start = next(node for node in flow["workflow"]["graph"]["nodes"] if node["data"]["type"] == "start")
        self._inputs = [str(variable["variable"]) for variable in start["data"]["variables"]]
        with _LOADING, patch.object(importer, "_parse_yaml", lambda _: flow):
            self._plan = importer.inspect("")
        self._factory = _factory(self.model, _LocalSandbox(is_sandbox_down))
        self._runs = 0
        self.current = Run()

    async def chat(self, query: str, *, user: str, conversation: str, run_id: str = "") -> Run:
        """One message of a Chatflow."""
        context = {
            "user_id": user,
            "conversation_id": conversation,
            "dialogue_count": 1,
            "app_id": "app",
            "workflow_id": "workflow",
            "workflow_run_id": run_id or self._next_run(conversation),
        }
        return await asyncio.to_thread(self._run, context, {"query": query})

    async def work(self, *, run_id: str = "", **inputs: str) -> Run:
        """One run of a Workflow app, called without a user."""
        context = {"user_id": "DEFAULT-USER", "workflow_run_id": run_id or self._next_run("workflow")}
        # Dify hands an input that was left out on as an empty one.
        return await asyncio.to_thread(self._run, context, {**dict.fromkeys(self._inputs, ""), **inputs})

    def _next_run(self, prefix: str) -> str:
        self._runs += 1
        return f"run-{prefix}-{id(self)}-{self._runs}"

    def _run(self, context: Mapping[str, Any], inputs: Mapping[str, str]) -> Run:
        engine = self._load(context, inputs)
        run = self.current = Run()
        began = time.monotonic()
        events = filter_engine_events(
            engine.run(),
            context=EngineEventFilterContext.from_engine(engine),
            filters=[ResponseStreamFilter()],
        )
        try:
            for event in events:
                _note(run, event, time.monotonic() - began)
        except RuntimeError:
            # Raised after the event that tells the same.
            if not run.error:
                raise
        run.total_s = time.monotonic() - began
        return run

    def _load(self, context: Mapping[str, Any], inputs: Mapping[str, str]) -> Engine:
        plan = self._plan.model_copy(deep=True)
        with (
            _LOADING,
            patch.object(importer, "SlimDslNodeFactory", self._factory),
            patch.object(importer, "inspect", lambda *_, **__: plan),
        ):
            return importer.loads("", run_context=context, start_inputs=inputs)


def _note(run: Run, event: object, now: float) -> None:
    match event:
        case NodeRunRetryEvent():
            run.nodes[event.node_id].attempts += 1
        case NodeRunStartedEvent():
            run.nodes.setdefault(event.node_id, NodeRun(now))
        case NodeRunStreamChunkEvent() if event.chunk:
            run.chunks.append((now, event.chunk))
        case NodeRunSucceededEvent() | NodeRunFailedEvent() | NodeRunExceptionEvent():
            node = run.nodes[event.node_id]
            node.ended_s = now
            node.status = str(event.node_run_result.status)
            node.outputs = event.node_run_result.outputs
            node.error = str(event.node_run_result.error or node.outputs.get("error_message", ""))
        case GraphRunSucceededEvent() | GraphRunPartialSucceededEvent():
            is_whole = isinstance(event, GraphRunSucceededEvent)
            run.status = "succeeded" if is_whole else "partial-succeeded"
            run.outputs = event.outputs
        case GraphRunFailedEvent():
            run.error = event.error
        case _:
            pass


def _factory(model: StubModel, sandbox: _LocalSandbox) -> type[SlimDslNodeFactory]:
    """graphon's node factory with our model and our sandbox in it."""

    def make_code(self: SlimDslNodeFactory, request: Any) -> CodeNode:
        node: CodeNode = CodeNode(
            node_id=request.node_id,
            data=CodeNodeData.model_validate(request.data_payload),
            init_params=self.init_params,
            runtime_state=self.runtime_state,
            code_executor=sandbox,
            code_limits=CodeNodeLimits(
                max_string_length=400_000,
                max_number=2**63 - 1,
                min_number=-(2**63 - 1),
                max_precision=20,
                max_depth=5,
                max_number_array_length=1000,
                max_string_array_length=30,
                max_object_array_length=30,
            ),
        )
        return node

    class StubFactory(SlimDslNodeFactory):
        NODE_BUILDERS: ClassVar[Mapping[Any, Any]] = {
            **SlimDslNodeFactory.NODE_BUILDERS,
            BuiltinNodeTypes.CODE: make_code,
        }

        def _resolve_slim_llm_settings(
            self, *, node_id: str, data: Mapping[str, Any], node_type_label: str
        ) -> tuple[dict[str, Any], str, str, dict[str, Any]]:
            del node_id, node_type_label
            return dict(data), "stub", "stub", {}

        def _create_slim_llm_runtime(
            self, *, node_id: str, data: Mapping[str, Any], node_type_label: str
        ) -> tuple[dict[str, Any], Any]:
            del node_id, node_type_label
            return dict(data), _StubRuntime(model, str(data["model"]["name"]))

    return StubFactory
