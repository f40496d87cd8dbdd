"""The client of a Ray cluster, in a process of its own: does what the agent's lines ask, and answers each with a line.

    python -m gateway.agent.ray.driver SETUP

Its first line says that it is connected, or why it cannot connect, in which case it ends. It ends when its stdin does.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Mapping
from typing import Any

import msgspec

from gateway.agent.launcher import CannotStart, Engine, LaunchRequest
from gateway.agent.ray.messages import (
    Answer,
    Call,
    ClusterState,
    Connected,
    Done,
    Forget,
    Go,
    Look,
    NumberedAnswer,
    NumberedCall,
    Offer,
    Offered,
    Refused,
    Setup,
    Started,
    Stop,
    Unreachable,
    Waits,
)
from gateway.agent.ray.resources import (
    CPU,
    GPU,
    MEMORY,
    RayNode,
    label_selector,
    needs_gpu,
    nodes_for,
    nodes_of,
    resource_demand,
    why_waiting,
)

try:
    import ray
    from ray.exceptions import ActorDiedError, ActorUnavailableError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from gateway.agent.ray.supervisor import NodeEngines, Supervisor
except ImportError as error:
    MISSING = str(error)
else:
    MISSING = ""

LOOK_S = 3.0
"""Seconds within which a supervisor has to answer about its engines."""
PLACE_S = 1.5
"""Seconds after which a replica without a node is said to wait for one."""
OFFER_S = 20.0
STOP_EXTRA_S = 10.0
MAX_LINE_BYTES = 16 << 20

_Takes = tuple[dict[str, float], dict[str, str]]
"""The resources that a seat reserves, and its conditions on the node's labels."""
_SEAT, _LOOKOUT = "replica:", "node:"


class Driver:
    """A connection to the cluster, and the supervisors there.

    A replica has a *seat*: the supervisor for which Ray keeps its resources. A node on which there are engines and no
    seat, or that has not been looked at yet, has a *lookout*: a supervisor without resources. Lookouts go once their
    nodes have no engine: a node with any actor counts as busy, and would never be given back.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._seats: dict[str, Any] = {}
        self._seat_nodes: dict[str, str] = {}
        """The nodes of seats that have one."""
        self._seat_takes: dict[str, _Takes] = {}
        """The resources that this driver asked Ray for, for each seat that it has made."""
        self._lookouts: dict[str, Any] = {}
        self._looked_at: set[str] = set()
        """Nodes that had no engine when they were first looked at."""
        self._engine_nodes: dict[tuple[str, int], str] = {}
        self._engines: dict[tuple[str, int], Engine] = {}
        """The engines whose nodes are in `_engine_nodes`."""
        self._only_one_looks = asyncio.Lock()
        self._asked: dict[Any, asyncio.Future[NodeEngines]] = {}
        """The question to each supervisor that has not been answered yet."""
        self._nodes: list[RayNode] = []
        self._supervisor = ray.remote(Supervisor)

    def connect(self) -> int:
        """Connect to the cluster, and find the seats that there are; return the number of nodes.

        Raises the errors of Ray: when the cluster does not answer or has another version.
        """
        ray.init(
            address=self._setup.address,
            namespace=self._setup.namespace,
            log_to_driver=False,
            configure_logging=False,
            include_dashboard=False,
        )
        for name in ray.util.list_named_actors():
            if name.startswith(_SEAT):
                self._seats[name.removeprefix(_SEAT)] = ray.get_actor(name)
        self._nodes = nodes_of(ray.nodes())
        return len(self._nodes)

    async def answer(self, call: Call) -> Answer:
        """Carry out a command of the agent, and return the answer."""
        try:
            match call:
                case Look():
                    async with self._only_one_looks:
                        return await self._report_cluster(call.public_keys, call.kept)
                case Offer():
                    return await self._offer_place(call.ask, call.public_keys)
                case Go():
                    seat = self._seats.get(call.replica_id)
                    if seat is None:
                        return Refused("the place that was kept for it is gone")
                    engine = await _await_within(OFFER_S, seat.go.remote(call.spec))
                    node_id = self._seat_nodes.get(call.replica_id)
                    if engine is not None and node_id is not None:
                        self._engine_nodes[engine.replica_id, engine.generation] = node_id
                        self._engines[engine.replica_id, engine.generation] = engine
                    return Started(engine)
                case Stop():
                    return await self._stop_engine(call)
                case Forget():
                    takes = dict(self._seat_takes)  # threads add to it
                    self._seat_takes = {id: takes[id] for id in call.replica_ids if id in takes}
                    watchers = self._watchers().values()
                    await asyncio.gather(
                        *(_await_within(LOOK_S, each.forget.remote(call.replica_ids)) for each in watchers),
                        return_exceptions=True,
                    )
                    return Done()
        except CannotStart as refusal:
            return Refused(str(refusal))
        except Exception as error:  # whatever it is: no call stays without an answer
            return Unreachable(f"the Ray cluster does not answer: {in_a_line(error)}")

    # what there is

    async def _report_cluster(self, public_keys: list[str], kept: list[str] | None) -> ClusterState:
        seated = set(self._seats)  # those that `kept` can know of
        self._nodes = nodes_of(await asyncio.to_thread(ray.nodes))
        alive = {each.id for each in self._nodes}
        self._lookouts = {id: each for id, each in self._lookouts.items() if id in alive}
        self._looked_at &= alive
        for node_id in alive - self._looked_at - self._lookouts.keys() - set(self._seat_nodes.values()):
            self._lookouts[node_id] = await asyncio.to_thread(self._make_lookout, node_id)
        seats_before, engines_before = dict(self._seat_nodes), set(self._engine_nodes)
        seats = await self._ask_all(self._seats, public_keys)
        lookouts = await self._ask_all(self._lookouts, public_keys)
        by_node = {sight.node_id: sight for sight in (*lookouts.values(), *seats.values()) if sight.node_id in alive}
        silent = {*self._seat_nodes.values(), *self._engine_nodes.values()} - by_node.keys()
        self._looked_at = (self._looked_at | by_node.keys()) - silent  # those are looked at again
        offered = {id: node_id for id, node_id in self._seat_nodes.items() if seats_before.get(id) != node_id}
        self._seat_nodes = {id: sight.node_id for id, sight in seats.items() if sight.node_id in alive} | offered
        self._note_engines(by_node, alive, engines_before)
        await self._adopt(by_node)
        await self._release(by_node, seated - set(seated if kept is None else kept))
        engines = self._engines.values()
        ended = {each.replica_id: each for sight in lookouts.values() for each in sight.ended}
        ended |= {each.replica_id: each for id, sight in seats.items() for each in sight.ended if each.replica_id == id}
        nodes = sorted((each.shown() for each in self._nodes), key=lambda each: each.address)
        return ClusterState(sorted(engines, key=lambda each: each.generation), list(ended.values()), nodes)

    async def _ask_engines(self, supervisor: Any, public_keys: list[str], seconds: float) -> NodeEngines:
        """Ask a supervisor for the engines of its node.

        A supervisor that still owes the answer to an earlier question is asked once that answer has come.

        public_keys: the keys of the hosts that may connect to the engines. seconds: the most seconds to wait.

        Raises TimeoutError: when the answer does not come in time.
        Raises the supervisor's error: when the call fails.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + seconds
        while (owed := self._asked.get(supervisor)) is not None:
            await _await_within(end_s - loop.time(), owed)
        asked = self._asked[supervisor] = asyncio.ensure_future(supervisor.look.remote(public_keys))
        asked.add_done_callback(lambda asked: self._asked.pop(supervisor))
        sight: NodeEngines = await _await_within(end_s - loop.time(), asked)
        return sight

    def _note_engines(self, by_node: Mapping[str, NodeEngines], alive: set[str], before: set[tuple[str, int]]) -> None:
        """Record the engines that nodes report. Engines of a live node that did not answer are assumed to live.

        before: the engines that were known when the nodes were asked; a report may lack an engine that began later.
        """
        nodes = {
            key: node_id
            for key, node_id in self._engine_nodes.items()
            if self._engines[key].pid is not None and node_id in alive and (node_id not in by_node or key not in before)
        }
        engines = {key: self._engines[key] for key in nodes}
        for node_id, sight in by_node.items():
            for engine in sight.engines:
                nodes[engine.replica_id, engine.generation] = node_id
                engines[engine.replica_id, engine.generation] = engine
        self._engine_nodes, self._engines = nodes, engines

    async def _ask_all(self, supervisors: dict[str, Any], public_keys: list[str]) -> dict[str, NodeEngines]:
        """Return the answers of the supervisors that answer in time; forget the supervisors that are dead for good."""
        asked = dict(supervisors)
        sights = await asyncio.gather(
            *(self._ask_engines(each, public_keys, LOOK_S) for each in asked.values()), return_exceptions=True
        )
        for (key, supervisor), sight in zip(asked.items(), sights, strict=True):
            if isinstance(sight, ActorDiedError) and supervisors.get(key) is supervisor:
                del supervisors[key]
        return {key: sight for key, sight in zip(asked, sights, strict=True) if isinstance(sight, NodeEngines)}

    async def _adopt(self, by_node: dict[str, NodeEngines]) -> None:
        """Ensure that each running engine has a seat, a Ray actor, on its node; replace one that Ray moved away."""
        newest = dict(sorted(self._engine_nodes))
        for node_id, sight in by_node.items():
            for engine in sight.engines:
                id, ask = engine.replica_id, sight.asks.get(engine.replica_id)
                if ask is None or engine.pid is None or engine.generation != newest[id]:
                    continue
                if id not in self._seats:
                    self._seats[id] = await asyncio.to_thread(self._make_seat, ask, node_id)
                elif self._seat_nodes.get(id, node_id) != node_id:
                    await asyncio.to_thread(ray.kill, self._seats.pop(id))  # the next look makes another one here

    async def _release(self, by_node: dict[str, NodeEngines], spare: set[str]) -> None:
        """End seats without an engine that are not needed, and lookouts on nodes that have no engine or have a seat.

        spare: the replicas whose seats are not needed if they have no engine.
        """
        living = {replica_id for replica_id, _ in self._engine_nodes}
        for replica_id in (spare & self._seats.keys()) - living:
            self._seat_nodes.pop(replica_id, None)
            await asyncio.to_thread(ray.kill, self._seats.pop(replica_id))
        with_seats = set(self._seat_nodes.values())
        for node_id in list(self._lookouts):
            sight = by_node.get(node_id)
            if sight is not None and (node_id in with_seats or not sight.engines):
                await asyncio.to_thread(ray.kill, self._lookouts.pop(node_id))
        lost_sight = {node_id for (_, _), node_id in self._engine_nodes.items()} - with_seats - self._lookouts.keys()
        self._looked_at -= lost_sight

    def _watchers(self) -> dict[str, Any]:
        """Return one supervisor of each node that has any."""
        seats = {node_id: self._seats[id] for id, node_id in self._seat_nodes.items() if id in self._seats}
        return self._lookouts | seats

    # what is to be

    async def _offer_place(self, ask: LaunchRequest, public_keys: list[str]) -> Answer:
        if not self._nodes:
            self._nodes = nodes_of(await asyncio.to_thread(ray.nodes))
        seat = self._seats.get(ask.replica_id)
        if seat is not None and self._is_outdated(ask):
            del self._seats[ask.replica_id]
            self._seat_nodes.pop(ask.replica_id, None)
            await asyncio.to_thread(ray.kill, seat)
            return Waits("it takes other resources than before: its place is asked for anew")  # once the name is free
        if seat is None:
            seat = self._seats[ask.replica_id] = await asyncio.to_thread(self._make_seat, ask)
        try:
            sight = await self._ask_engines(seat, public_keys, PLACE_S)
        except (TimeoutError, ActorUnavailableError):
            on_gpu = needs_gpu(ask, self._nodes)
            is_full = bool(nodes_for(ask, self._nodes, on_gpu=on_gpu))
            return Waits(why_waiting(ask, self._nodes, on_gpu=on_gpu), is_full=is_full)
        except ActorDiedError as error:
            self._seats.pop(ask.replica_id, None)
            return Refused(f"its supervisor could not be made: {in_a_line(error)}")
        self._seat_nodes[ask.replica_id] = sight.node_id
        return Offered(await _await_within(OFFER_S, seat.offer.remote(ask, public_keys)))

    async def _stop_engine(self, call: Stop) -> Answer:
        node_id = self._engine_nodes.get((call.engine.replica_id, call.engine.generation))
        watcher = self._watchers().get(node_id or "")
        if watcher is None:
            return Unreachable("the node of the engine is not in the Ray cluster")
        await _await_within(call.grace_s + STOP_EXTRA_S, watcher.stop.remote(call.engine, call.grace_s))
        return Done()

    def _takes_of(self, ask: LaunchRequest) -> _Takes:
        return resource_demand(ask, on_gpu=needs_gpu(ask, self._nodes)), label_selector(ask)

    def _is_outdated(self, ask: LaunchRequest) -> bool:
        """Tell whether a seat without an engine was made for other resources or labels."""
        takes = self._takes_of(ask)
        lives = any(id == ask.replica_id for id, _ in self._engine_nodes)
        return not lives and self._seat_takes.get(ask.replica_id, takes) != takes

    def _make_seat(self, ask: LaunchRequest, node_id: str | None = None) -> Any:
        """Return the seat of a replica: the supervisor for which Ray keeps the replica's resources.

        node_id: the node on which a new seat is put if possible; None: any node.
        """
        wanted, labels = self._seat_takes[ask.replica_id] = self._takes_of(ask)
        affinity = NodeAffinitySchedulingStrategy(node_id, soft=True) if node_id is not None else "SPREAD"
        return self._supervisor.options(
            name=f"{_SEAT}{ask.replica_id}",
            get_if_exists=True,
            lifetime="detached",
            max_restarts=-1,
            num_cpus=wanted[CPU],
            num_gpus=wanted.get(GPU, 0),
            memory=wanted.get(MEMORY),
            scheduling_strategy=affinity,
            **({"label_selector": labels} if labels and node_id is None else {}),
        ).remote(self._setup, ask.replica_id)

    def _make_lookout(self, node_id: str) -> Any:
        return self._supervisor.options(
            num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)
        ).remote(self._setup)


async def _await_within(seconds: float, answer: Awaitable[Any]) -> Any:
    """Wait for a supervisor's answer for up to `seconds`, and return it. A call that takes longer goes on.

    Raises TimeoutError: when the answer does not come in time.
    Raises the supervisor's error: when the call fails.
    """
    waiting = asyncio.ensure_future(answer)
    done, _ = await asyncio.wait({waiting}, timeout=seconds)
    if not done:
        waiting.add_done_callback(lambda each: each.cancelled() or each.exception())
        raise TimeoutError(f"no answer within {seconds:g} s")
    return waiting.result()


def in_a_line(error: BaseException) -> str:
    """Return the first 300 characters of an error of Ray, on one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__


async def serve(setup: Setup, answers: int) -> int:
    """Connect, and serve until stdin ends; return the exit code. answers: the descriptor that gets the lines."""

    def say(number: int, answer: Answer) -> None:
        os.write(answers, msgspec.json.encode(NumberedAnswer(number, answer)) + b"\n")

    if MISSING:
        say(0, Unreachable(f"Ray is not installed ({MISSING}): pip install 'lorikeet-serving[ray]'"))
        return os.EX_CONFIG
    driver = Driver(setup)
    try:
        num_nodes = await asyncio.to_thread(driver.connect)
    except (
        Exception
    ) as error:  # whatever Ray raises: a wrong version is a RuntimeError, an absent cluster a ConnectionError
        say(0, Unreachable(f"the Ray cluster ({setup.address}) cannot be reached: {in_a_line(error)}"))
        return os.EX_TEMPFAIL
    say(0, Connected(num_nodes))
    calls = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(calls), sys.stdin)
    decoder, tasks = msgspec.json.Decoder(NumberedCall), set[asyncio.Task[None]]()

    async def do(called: NumberedCall) -> None:
        say(called.number, await driver.answer(called.call))

    async for line in calls:
        task = asyncio.create_task(do(decoder.decode(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    return os.EX_OK


def main() -> None:
    """Serve the agent until its end of the pipe closes."""
    setup = msgspec.json.decode(sys.argv[1], type=Setup)
    answers = os.dup(1)
    os.dup2(2, 1)  # Ray prints
    code = asyncio.run(serve(setup, answers))
    os._exit(code)  # Ray's own end waits for a head that may be away


if __name__ == "__main__":
    main()
