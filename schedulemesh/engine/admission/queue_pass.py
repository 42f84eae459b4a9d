"""Serves the queue: starts the tasks that fit when something has become free.

One pass goes through the classes of all pools in the order of the first task of each. A class whose first
task does not fit is left out for the rest of the pass, because capacity only shrinks while it lasts. Where it
fits, but would delay a reserved start, a later one of the class may start that ends sooner. A class
that is short of quota is also left out of the following passes, until quota of its pool becomes free: so what
a pass costs depends on what was freed, and not on how much waits. In a ``strict`` pool nothing starts before
a task that does not fit, unless the pool as it is defined could not hold it even if nothing else ran.

On each tick all classes are tried, and the first task of each pool that does not fit is also tried with
evictions, and gets a reserved start (``reservations``): both change with every task that starts, and
searching at each of these steps would cost more than it gains. Where evictions do not help the first task,
they are tried for the first of the next class, unless the pool is ``strict``; those may not delay a start
that is reserved for a task before it. An owner is given back its quota, whatever is reserved.

How often victims are searched on one tick is limited. Searches without candidates do not count, nor do those
that a search for another task of the pool shows to be in vain. Where the limit is too low for all, pools take
turns, and so do the tasks of a pool (``turns``). A reclaim does not wait for the turn of its pool.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from math import inf

import msgspec

from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.sentences import say
from schedulemesh.domain.windows import MaintenanceWindow
from schedulemesh.engine.admission.admit import Request, admit
from schedulemesh.engine.admission.arrays import SelectedMembers, cancel_remaining
from schedulemesh.engine.admission.backfill import Backfill, StartWouldDelay, first_in_order
from schedulemesh.engine.admission.decide import (
    each_way,
    understand,
    understand_alone,
)
from schedulemesh.engine.admission.delays import RunTimes, run_times
from schedulemesh.engine.admission.evicting_starts import Tried, start_with_evictions
from schedulemesh.engine.admission.evictions import may_take_back
from schedulemesh.engine.admission.fair_classes import FairClasses, Served, with_fair_pools
from schedulemesh.engine.admission.needs import (
    can_be_paid,
    is_ruled_out,
    need_of,
    on_nodes,
    quota_need_of_submission,
)
from schedulemesh.engine.admission.open_ways import kind_of, may_have_room, open_ways
from schedulemesh.engine.admission.pass_shares import PassShares
from schedulemesh.engine.admission.pending import finish_revocations
from schedulemesh.engine.admission.queue_estimates import estimate_all, estimate_new
from schedulemesh.engine.admission.requeue import release_quota
from schedulemesh.engine.admission.reservations import is_reserved_for, reserve_starts
from schedulemesh.engine.admission.serving_order import OpenClasses, ServingOrder, TurnRules
from schedulemesh.engine.admission.sure_refusals import (
    NO_SEARCHES,
    SureRefusals,
    UnrefusedClasses,
    by_need,
    nothing_refused,
)
from schedulemesh.engine.admission.turns import (
    SEARCHES,
    TRIES,
    PoolTurn,
    PoolTurns,
    in_turn,
    searches_of_pool,
)
from schedulemesh.engine.admission.vain_evictions import VainEvictions
from schedulemesh.engine.admission.windows import outside_windows
from schedulemesh.engine.messages.fact import Fact
from schedulemesh.engine.messages.facts import AgentEnded, AnswersForgotten, GroupEnded, GroupReady
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.messages.queue_facts import (
    ClassLoaded,
    QueuePlaceChanged,
    TaskCancelled,
    TurnsPassed,
)
from schedulemesh.engine.messages.stimuli import (
    AnyStimulus,
    ClockTicked,
    RecoveryObserved,
    TaskSubmitted,
)
from schedulemesh.engine.state.fair_order import Entry
from schedulemesh.engine.state.lending import clipped, idle_of_tree
from schedulemesh.engine.state.long_waits import PROMOTED
from schedulemesh.engine.state.need_index import LeastNeed
from schedulemesh.engine.state.queue_classes import QueueClass
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.engine.state.shares import ShareKey
from schedulemesh.engine.state.ways import in_way, ways_of
from schedulemesh.engine.transaction import Transaction

#: Facts after which a task may find a placement group: a new one, an unused one, or one to be removed for it.
_GROUPS = frozenset((AgentEnded, GroupEnded, GroupReady))

#: At how many tasks one pass looks behind the first of their class, which would delay a reserved start; as
#: bf_max_job_test of Slurm.
_LOOKED_AT = 2_000
#: At so many of each class it looks in any case.
_LOOKED_AT_LEAST = 20
#: How many classes that are tried without a search take as long as one search for victims.
SEARCH_WORK = 25
#: Before every place.
_FIRST: Entry = (-inf, 0, "")


def serve_queue(tx: Transaction, stimulus: AnyStimulus) -> None:
    """Start the queued tasks that fit after this step."""
    if isinstance(stimulus, (ClockTicked, RecoveryObserved)):
        for _ in serve_queue_at_tick(tx):
            pass
        return
    estimate_new(tx)
    kinds = {type(fact) for fact in tx.facts}
    if ClassLoaded in kinds:
        for _ in _complete_pass(tx):
            pass
        finish_revocations(tx)
        estimate_new(tx)
        return
    _serve_step(tx, kinds)
    estimate_new(tx)


def serve_queue_at_tick(tx: Transaction) -> Iterator[None]:
    """The same on a tick, which may be divided: it yields where others may be served."""
    queue = tx.state.queue
    changed = queue.changed
    _cancel_expired(tx)
    _promote_overdue(tx)
    estimate_all(tx)
    heads, evictions = yield from _complete_pass(tx)
    finish_revocations(tx)
    estimate_new(tx)
    starts = yield from reserve_starts(tx, [h for h in heads if h.task_id in queue.by_id])
    if (queue.turns.evictions, queue.turns.starts) != (evictions, starts):
        tx.emit(TurnsPassed(at=tx.now, evictions=evictions, starts=starts))
    if all(type(fact) is AnswersForgotten for fact in tx.facts):
        # A tick that decides nothing is in no history, so it must not change what later steps do.
        queue.changed = queue.changed or changed


def _serve_step(tx: Transaction, kinds: Collection[type[Fact]]) -> None:
    """Start what may start after a step with facts of these kinds. Like a tick, one that decides nothing
    changes nothing of what later steps do.
    """
    queue = tx.state.queue
    changed = queue.changed
    queue.advance(tx.now)
    _note_freed(tx)
    if not _GROUPS.isdisjoint(kinds):
        queue.changed = True
    _serve_changed(tx)
    if not tx.facts:
        queue.changed = changed


def serve_before(tx: Transaction) -> None:
    """Start what may start by now, before another task joins the queue and is tried at once."""
    tx.state.queue.advance(tx.now)
    _note_freed(tx)
    _serve_changed(tx)


def _serve_changed(tx: Transaction) -> None:
    while tx.state.queue.changed:
        # Once more where a task with a reserved start has started: it holds others back no longer.
        for _ in _Pass(tx).run():
            pass


def _complete_pass(tx: Transaction) -> Generator[None, None, tuple[list[QueuedTask], str]]:
    """Try every class, and with evictions, too; see ``_Pass.run``. The first tasks for which starts are
    reserved, and the pool with which the searches of the next tick begin.
    """
    queue = tx.state.queue
    queue.advance(tx.now)
    _note_freed(tx)
    queue.no_room.clear()
    queue.no_group.clear()
    queue.reopen_all()
    waiting = set(queue.pools)
    turn, begin = in_turn(waiting, queue.turns.evictions, SEARCHES)
    served = yield from _run(_Pass(tx, turn))
    searches, waiting = served.searches, waiting - turn
    while waiting and searches < SEARCHES:
        turn, begin = in_turn(waiting, begin, SEARCHES - searches)
        for pool_name in sorted(turn):
            queue.reopen(pool_name)
        further = yield from _run(_Pass(tx, turn, only=turn))
        searches, waiting = searches + further.searches, waiting - turn
    return served.heads, begin if waiting else queue.turns.evictions


def _run(one: _Pass) -> Generator[None, None, _Pass]:
    """Make a pass; it goes on with what is left of it where others have changed something meanwhile."""
    while True:
        for _ in one.run():
            yield
            if one.is_interrupted:
                break
        else:
            return one
        one = one.continued()


def _note_freed(tx: Transaction) -> None:
    """Have those classes tried for which something has become free."""
    queue, ledger, cluster = tx.state.queue, tx.state.ledger, tx.state.cluster
    groups = tx.state.groups
    for pool_name in ledger.freed:
        queue.reopen(pool_name)
        if path := ledger.cohorts.path(pool_name):
            queue.freed_trees.add(path[-1])
            queue.changed = True
    ledger.freed.clear()
    if cluster.freed or groups.changed:
        queue.no_group.clear()
        groups.changed = False
    if cluster.freed:
        freed = [cluster.nodes.get(node_id) for node_id in cluster.freed]
        cluster.freed.clear()
        queue.no_room.forget([None if node is None else node.labels for node in freed])
        queue.changed = True


def _cancel_expired(tx: Transaction) -> None:
    for task in tx.state.queue.expired(tx.now):
        error = f"task {task.task_id!r} did not start within {task.submission.wait_s:g} s"
        cancel(tx, task, Reason.WAIT_TIMEOUT, error)


def _promote_overdue(tx: Transaction) -> None:
    """Have those come first that have waited for as long as the policy says."""
    queue = tx.state.queue
    for task_id in queue.long_waits.over(queue.policy.promote_after_s, tx.now):
        task = queue.by_id[task_id]
        tx.emit(
            QueuePlaceChanged(
                task_id=task.task_id,
                held=task.held,
                priority=task.spec.priority,
                at=tx.now,
                front=PROMOTED,
            )
        )


def cancel(tx: Transaction, task: QueuedTask, reason: Reason, error: str = "") -> None:
    """Remove a task from the queue, and refuse the request that waits until it runs. Of an array, no further
    member starts.
    """
    if task.spec.array:
        all_members = SelectedMembers(array=tx.state.arrays.by_id[task.task_id])
        cancel_remaining(tx, all_members, reason, error)
    else:
        tx.emit(TaskCancelled(task_id=task.task_id, at=tx.now, reason=reason, error=error))
    release_quota(tx, task.task_id)
    if is_strict(tx, task.pool_name):
        tx.state.queue.reopen(task.pool_name)
    text = error or say("cancelled_in_queue", task=task.task_id)
    tx.answer(task.submission.request_id, Refused(reason=reason, error_text=text))


def is_strict(tx: Transaction, pool_name: str) -> bool:
    """Whether nothing is backfilled before the first task of the pool."""
    return tx.state.ledger.accounts[pool_name].spec.queueing == "strict"


def start(tx: Transaction, task: QueuedTask, *, may_preempt: bool) -> bool:
    """Admit a task from the queue if it fits, or if those may be evicted that keep it from fitting."""
    if not tx.state.windows.by_name:
        return _start(tx, task, may_preempt=may_preempt)
    with outside_windows(tx.state, task.submission, tx.now):
        return _start(tx, task, may_preempt=may_preempt)


def _start(tx: Transaction, task: QueuedTask, *, may_preempt: bool) -> bool:
    request = understand(tx, task.submission)
    if isinstance(request, Refused):
        return False
    if request.fits_now and _start_beside_heads(tx, task, request):
        return True
    return may_preempt and start_with_evictions(tx, task, request) is Tried.STARTED


def _start_beside_heads(tx: Transaction, task: QueuedTask, request: Request) -> bool:
    """Admit a task in the first of its alternatives that fits and delays no reserved start before it."""
    entry, backfill = tx.state.queue.entry(task), Backfill(tx, keep=True)
    for each in each_way(tx, request):
        allowed = backfill.permitted(each, entry) if each.fits_now else None
        if allowed is not None:
            admit(tx, allowed, None)
            return True
    return False


class _Pass:
    """One service of the queue: first of the tasks that fit into their own pools' quota, in the order of the
    queue; then of those that would borrow, the pool with the lowest share of its cohort first.
    """

    def __init__(
        self,
        tx: Transaction,
        turn: frozenset[str] | None = None,
        only: frozenset[str] | None = None,
    ) -> None:
        self._tx = tx
        #: The pools for whose tasks victims are searched by all rules, and not for a reclaim alone; None:
        #: nobody is evicted in this pass.
        self._turn = turn
        #: The pools that are served; None: all.
        self._only = only
        #: How often victims were searched for pools whose turn it is.
        self.searches = 0
        self._turns: dict[str, PoolTurns] = {}
        #: Pools in which nobody else may be helped by evictions.
        self._settled: set[str] = set()
        self._vain = VainEvictions(tx)
        #: At how many tasks behind the first of their class the pass may still look.
        self._looks = _LOOKED_AT
        self._backfill = Backfill(tx, keep=True)
        #: Of classes whose first task would delay a reserved start, the later one that is served next, and
        #: the run times within which those behind it may start.
        self._later: dict[QueueClass, Entry] = {}
        self._limits: dict[QueueClass, RunTimes] = {}
        #: Of strict pools, the place of the task before which nothing starts.
        self._firsts: dict[str, Entry] = {}
        #: The windows on whose nodes the task may not start that is tried.
        self._ahead: list[MaintenanceWindow] = []
        #: Pools whose first task does not fit, and the first of each for which a start can be reserved.
        self._blocked: set[str] = set()
        self._has_head: set[str] = set()
        self.heads: list[QueuedTask] = []
        #: Classes whose first task would borrow, and those behind them in their pools that do not fit; None
        #: while these are served.
        self._borrowers: list[QueueClass] | None = []
        self._borrowing_pools: set[str] = set()
        self._shares = PassShares(tx)
        #: Of a pass that is made in portions: how much of one is done, which classes were served, and how
        #: many had been opened when it began; those that are opened later are not served.
        self._work = 0
        self._served: set[QueueClass] = set()
        self._opened = tx.state.queue.opened
        self._resumed = tx.resumed

    def run(self) -> Iterator[None]:
        """Start what fits of the open classes. In a tick that is divided it yields where others may be
        served; if they change something, this pass ends there, and ``continued`` is the rest of it.
        """
        queue = self._tx.state.queue
        queue.changed = False
        by_usage = queue.policy.order == "dominant_share"
        yield from self._serve_all(self._open_classes(), self._shares.usage if by_usage else None)
        borrowers, self._borrowers = self._borrowers or [], None
        borrowers += self._of_freed_trees()
        if borrowers:
            opened = OpenClasses(*with_fair_pools(self._tx, borrowers, self._later))
            yield from self._serve_all(opened, self._shares.share)

    @property
    def is_interrupted(self) -> bool:
        """Whether others have changed something since it began, or yielded last."""
        return self._tx.resumed > self._resumed

    def continued(self) -> _Pass:
        """A pass over those classes that this one has not served yet, and that were there when it began; what
        this one has found out of others may hold no longer.
        """
        rest, queue = _Pass(self._tx, self._turn, self._only), self._tx.state.queue
        rest._opened, rest._served = self._opened, self._served
        rest.searches, rest._turns, rest._settled = self.searches, self._turns, self._settled
        rest._looks, rest._blocked = self._looks, self._blocked
        rest.heads = [
            head
            for head in self.heads
            if queue.by_id.get(head.task_id) is head and head.queue_class is not None
        ]
        rest._has_head = {head.pool_name for head in rest.heads}
        # What other steps have found short of quota may still evict.
        for pool_name in queue.pools if self._only is None else sorted(self._only):
            queue.reopen(pool_name)
        return rest

    def _of_freed_trees(self) -> list[QueueClass]:
        """The classes that were short of quota, and might borrow some of what was freed in their trees of
        cohorts and is still idle now that owners have been served.
        """
        state, queue = self._tx.state, self._tx.state.queue
        ledger, opened = state.ledger, []
        for root in sorted(queue.freed_trees):
            idle = idle_of_tree(ledger, root)
            for pool_name in ledger.cohorts.pools_below(root) if idle else ():
                closed = queue.closed_of(pool_name)
                usable = idle + clipped(ledger.accounts[pool_name].free) if closed else idle
                for queue_class in closed:
                    need = None if pool_name in ledger.flavored else queue_class.need
                    if need is None or need.fits(usable) or ledger.holds:
                        queue.open_class(queue_class)
                        opened.append(queue_class)
        queue.freed_trees.clear()
        self._opened = queue.opened  # these are served, too
        return opened

    def _serve_all(
        self, opened: OpenClasses, share: Callable[[QueueClass], ShareKey] | None
    ) -> Iterator[None]:
        """Serve these classes in their order; see ``run``. ``share``: see ``TurnRules``."""
        by = TurnRules(
            share=share,
            later=self._later,
            first_of=self._first_of,
            refuses=self._refuses,
            forgets=self._forgets,
        )
        order = ServingOrder(self._tx, opened, by)
        while (queue_class := order.next()) is not None:
            again = self._serve(queue_class) and bool(queue_class.entries)
            order.note(queue_class, again=again)
            if not self._tx.portion:
                continue
            if not again and queue_class not in (self._borrowers or [])[-1:]:
                self._served.add(queue_class)
            if self._is_portion_over():
                yield

    def _forgets(self) -> tuple[int, int]:
        """See ``TurnRules``: while others are evicted, every fact may change whom that helps."""
        return (self._backfill.forgets, 0 if self._turn is None else len(self._tx.facts))

    def _is_portion_over(self) -> bool:
        """Whether others may be served before the next class."""
        self._work += 1
        if self._work < self._tx.portion or not self._tx.may_be_interrupted:
            return False
        self._work = 0
        return True

    def _refuses(self, group: UnrefusedClasses) -> Callable[[LeastNeed], bool]:
        """What says of classes of a group that surely none of them starts."""
        state, pool_name, searches = self._tx.state, group.pool_name, NO_SEARCHES
        if self._turn is not None:
            if pool_name not in self._blocked or not self._has_its_head(pool_name):
                return nothing_refused
            if pool_name not in self._settled:
                searches = (
                    self._searched_from(group),
                    self._vain.of(pool_name, group.alike),
                    self._vain.nobody_for(pool_name, group.alike),
                )
        return SureRefusals(state, pool_name, group.alike, self._backfill, searches).include

    def _has_its_head(self, pool_name: str) -> bool:
        """Whether it is known for which task of a pool a start is reserved on this tick."""
        state = self._tx.state
        is_greedy = state.ledger.accounts[pool_name].spec.queueing == "greedy"
        return is_greedy or pool_name in self._has_head or pool_name in state.drains.pools

    def _searched_from(self, group: UnrefusedClasses) -> Entry | None:
        """From which place on victims are still searched on this tick for tasks of a pool; None: nowhere."""
        ledger, turns = self._tx.state.ledger, self._turns.get(group.pool_name)
        if turns is None or ledger.loans or ledger.promises:
            return _FIRST
        rank, firsts = turns.begin, group.pool.firsts
        return firsts[rank] if rank is not None and rank < len(firsts) else None

    def _open_classes(self) -> OpenClasses:
        """See ``_listed``; of what a pass in portions continues, the rest."""
        opened, served = self._listed(), self._served
        if not served:
            return opened
        for fair_classes in opened.fair.values():
            fair_classes.leave_out(served, self._opened)
        for group in opened.groups:
            group.leave_out(served, self._opened)
        rest = [c for c in opened.classes if c not in served and c.opened <= self._opened]
        return OpenClasses(rest, opened.fair, opened.groups)

    def _listed(self) -> OpenClasses:
        """The classes that the pass tries one by one, those of fair pools, and the groups of pools in which
        there are many.
        """
        queue, only = self._tx.state.queue, self._only
        classes, fair = list[QueueClass](), dict[str, FairClasses]()
        groups = list[UnrefusedClasses]()
        for pool_name in list(queue.open_pools):
            if only is not None and pool_name not in only:
                continue
            pool = queue.pools.get(pool_name)
            if pool is None:
                del queue.open_pools[pool_name]
            elif pool.alike is not None:
                served: Served = {}
                for each in pool.alike.values():
                    if each.open:
                        served[each] = each.open
                if served:
                    fair[pool_name] = FairClasses(self._tx, pool_name, served, self._later)
                else:
                    del queue.open_pools[pool_name]
            elif len(pool.closed) == len(pool.classes):
                del queue.open_pools[pool_name]
            elif len(pool.classes) < pool.many and pool.by_need is None:
                classes += [c for c in pool.classes.values() if c not in pool.closed]
            else:
                alone, groups_of_pool = by_need(self._tx, pool, pool_name)
                classes += [c for c in alone if c not in pool.closed]
                groups += groups_of_pool
        return OpenClasses(classes, fair, groups)

    def _first_of(self, fair_classes: FairClasses) -> QueueClass | None:
        """The class of a fair pool that is served next; None: none of it may start."""
        if fair_classes.facts != len(self._tx.facts):
            fair_classes.begin_anew()
            self._close_short(fair_classes)
        return fair_classes.first()

    def _close_short(self, fair_classes: FairClasses) -> None:
        """Serve those classes no more for which the pool's quota is short, each amount tried once for all its
        owners. Not where a task may be helped that cannot be paid: by loans, or by evictions.
        """
        tx, pool_name = self._tx, fair_classes.pool_name
        ledger = tx.state.ledger
        spec = ledger.accounts[pool_name].spec
        if self._turn is not None or ledger.holds or spec.queueing == "strict":
            return
        may_borrow = self._borrowers is not None and spec.cohort is not None
        if may_borrow and ledger.cohorts.neighbours(pool_name).names:
            return
        queue = tx.state.queue

        def is_short(queue_class: QueueClass) -> bool:
            return not self._can_be_paid(queue.by_id[queue_class.first[-1]], queue_class)

        # As where each is tried by itself: what has no room stays open, and keeps the place of its pool.
        may_lack_room = queue.no_group or queue.no_room
        has_room = self._has_room if may_lack_room else None
        fair_classes.pass_over(is_short, has_room, by_place=spec.groups is None)

    def _has_room(self, queue_class: QueueClass) -> bool:
        """False: the first task of a class has no room in any of its alternatives."""
        if not queue_class.entries:
            return True
        state, places = self._tx.state, queue_class.on_nodes
        if places is None:
            each = self._ways(queue_class, self._first_submission(queue_class))
            places = queue_class.on_nodes = on_nodes(each)
        if places and state.ledger.accounts[queue_class.pool_name].spec.groups is None:
            return not state.queue.no_room.includes_all(places)
        ways = self._ways(queue_class, self._first_submission(queue_class))
        return any(may_have_room(state, way) for way in ways)

    def _first_submission(self, queue_class: QueueClass) -> TaskSubmitted:
        """The submission of the first task of a class."""
        return self._tx.state.queue.by_id[queue_class.first[-1]].submission

    def _ways(
        self, queue_class: QueueClass, submission: TaskSubmitted
    ) -> tuple[TaskSubmitted, ...]:
        """A submission of a class in each way in which its tasks may run, the preferred one first."""
        ledger = self._tx.state.ledger
        if not submission.agent.alternatives and not ledger.flavored:
            return (submission,)
        if not queue_class.submissions:
            queue_class.submissions = ways_of(ledger, submission)
        return queue_class.submissions

    def _would_borrow(self, queue_class: QueueClass, task: QueuedTask) -> bool:
        """Whether the pool's own quota is not enough, and it is in a cohort that may lend it some."""
        state, pool_name = self._tx.state, queue_class.pool_name
        ledger = state.ledger
        if ledger.accounts[pool_name].spec.cohort is None:
            return False
        if not ledger.cohorts.neighbours(pool_name).names:
            return False
        if pool_name in ledger.flavored:
            return self._would_borrow_in_flavor(queue_class, task)
        return not need_of(state, task).fits(ledger.accounts[pool_name].free)

    def _would_borrow_in_flavor(self, queue_class: QueueClass, task: QueuedTask) -> bool:
        """The same for a pool with flavors: whether the first flavor that can be paid needs a loan."""
        state, pool_name, client = self._tx.state, task.pool_name, task.submission.client
        free = state.ledger.accounts[pool_name].free
        for each in self._ways(queue_class, task.submission):
            quota_need = quota_need_of_submission(state, each)
            if quota_need.fits(free):
                return False
            if can_be_paid(state, pool_name, quota_need, client):
                break
        return True

    def _serve(self, queue_class: QueueClass) -> bool:
        """Try to start the next task of a class; whether another one of it may start."""
        tx = self._tx
        if not tx.state.windows.by_name:
            return self._serve_next(queue_class)
        entry = self._later.get(queue_class) or queue_class.first
        submission = tx.state.queue.by_id[entry[-1]].submission
        with outside_windows(tx.state, submission, tx.now) as self._ahead:
            return self._serve_next(queue_class)

    def _serve_next(self, queue_class: QueueClass) -> bool:
        if queue_class in self._later:
            return self._serve_later(queue_class)
        return self._serve_first(queue_class) or queue_class in self._later

    def _serve_first(self, queue_class: QueueClass) -> bool:
        """Start the first task of a class; whether that was done."""
        queue, pool_name = self._tx.state.queue, queue_class.pool_name
        task = queue.by_id[queue_class.first[-1]]
        strict = is_strict(self._tx, pool_name)
        if strict and is_ruled_out(self._tx.state, task):
            queue.close(queue_class)
            return False
        behind = self._borrowers if pool_name in self._borrowing_pools else None
        if strict and (pool_name in self._blocked or self._is_behind(queue_class)):
            if behind is not None:
                behind.append(queue_class)  # the first of its pool may still start, by borrowing
            return False
        if self._borrowers is not None and self._would_borrow(queue_class, task):
            self._borrowers.append(queue_class)
            self._borrowing_pools.add(pool_name)
            return False
        spared = self._tx.state.spared
        in_vain = spared.is_in_vain(task.task_id, self._tx.now)
        may_fit = not in_vain and self._may_fit(task, queue_class)
        if may_fit and self._try_start(task, queue_class):
            return True
        if behind is not None:
            behind.append(queue_class)  # it is not the first of its pool that does not fit
            return False
        is_short = not in_vain and not may_fit
        if self._turn is not None and self._evicts(task, queue_class, is_short=is_short):
            self._backfill.forget()
            return True
        if not queue_class.extra:
            self._blocked.add(pool_name)
            if self._turn is not None and pool_name not in self._has_head:
                self._note_head(pool_name, task)
        return False

    def _is_behind(self, queue_class: QueueClass) -> bool:
        """Whether another task of its strict pool has to start before the next one of this class."""
        first = self._first_in_pool(queue_class.pool_name)
        return first is not None and first < queue_class.first

    def _first_in_pool(self, pool_name: str) -> Entry | None:
        """The place of the first task of a strict pool that may start; None: there is none. It is cached.
        Once that task has started, the search goes on from its place: the tasks before it could not start,
        and still cannot, as no pool is changed while a pass lasts.
        """
        state = self._tx.state
        if state.owners.is_fair(pool_name):
            return first_in_order(state, pool_name)
        first = self._firsts.get(pool_name)
        if first is None or first[-1] not in state.queue.by_id:
            first = first_in_order(state, pool_name, first)
            if first is not None:
                self._firsts[pool_name] = first
        return first

    def _evicts(self, task: QueuedTask, queue_class: QueueClass, *, is_short: bool) -> bool:
        """Start the first task of a class with evictions, if those before it in its pool cannot be helped.
        ``is_short``: surely it lacks quota or room.
        """
        pool_name, behind = queue_class.pool_name, queue_class.pool_name in self._blocked
        if pool_name in self._settled or self._vain.includes(task):
            return False
        turns = self._turns_of(pool_name)
        rank = self._tx.state.queue.pools[pool_name].firsts.bisect_left(queue_class.first)
        full = turns.tries.includes(rank) and turns.searches.includes(rank)
        tries = turns.tries if full else turns.reclaims
        if not full and not (tries.includes(rank) and may_take_back(self._tx.state, task)):
            return False
        if full and is_short and self._vain.finds_nobody(task):
            if not self._ahead:
                self._vain.note(task, searched=False)
            return False
        tries.note()
        tried = self._tried(task, full=full, behind=behind)
        if tried is Tried.LOADING:
            self._settled.add(pool_name)
        if tried in (Tried.IN_VAIN, Tried.SEARCHED_IN_VAIN) and full and not self._ahead:
            self._vain.note(task, searched=tried is Tried.SEARCHED_IN_VAIN)
        if tried in (Tried.SEARCHED_IN_VAIN, Tried.WOULD_DELAY) and full:
            self.searches += 1
            turns.searches.note()
        return tried is Tried.STARTED

    def _turns_of(self, pool_name: str) -> PoolTurns:
        """Which tasks of a pool are tried with evictions on this tick."""
        turns = self._turns.get(pool_name)
        if turns is None:
            now, pools = self._tx.now, self._turn or frozenset()
            waiting = len(self._tx.state.queue.pools[pool_name].firsts)
            searches = searches_of_pool(len(pools)) if pool_name in pools else 0
            turns = self._turns[pool_name] = PoolTurns(
                searches=PoolTurn(searches, waiting, now),
                tries=PoolTurn(TRIES, waiting, now),
                reclaims=PoolTurn(TRIES, waiting, now),
            )
        return turns

    def _tried(self, task: QueuedTask, *, full: bool, behind: bool) -> Tried:
        spared = self._tx.state.spared
        if spared.is_in_vain(task.task_id, self._tx.now):
            searched = spared.was_searched(task.task_id)
            return Tried.SEARCHED_IN_VAIN if searched else Tried.IN_VAIN
        request = understand(self._tx, task.submission)
        if isinstance(request, Refused):
            return Tried.IN_VAIN
        if request.fits_now and (behind or start(self._tx, task, may_preempt=False)):
            return Tried.IN_VAIN if behind else Tried.STARTED
        self._work += SEARCH_WORK
        request = msgspec.structs.replace(request, only_reclaims=not full)
        return start_with_evictions(self._tx, task, request)

    def _note_head(self, pool_name: str, task: QueuedTask) -> None:
        """Note the first task of a pool for which a start is reserved on this tick."""
        if is_reserved_for(self._tx.state, task):
            self._has_head.add(pool_name)
            self.heads.append(task)

    def _may_fit(self, task: QueuedTask, queue_class: QueueClass) -> bool:
        """False: its pool's quota is short, or no node has room, or there is no group. Costs little."""
        state = self._tx.state
        if not self._has_room(queue_class):
            return False
        if self._can_be_paid(task, queue_class):
            return True
        state.queue.close(queue_class)
        return False

    def _can_be_paid(self, task: QueuedTask, queue_class: QueueClass) -> bool:
        """Whether there is quota for a task in any of its alternatives."""
        state, pool_name, submission = self._tx.state, queue_class.pool_name, task.submission
        client = submission.client
        for each in self._ways(queue_class, submission):
            if can_be_paid(state, pool_name, quota_need_of_submission(state, each), client):
                return True
        return False

    def _try_start(self, task: QueuedTask, queue_class: QueueClass) -> bool:
        if (refusal := self._backfill.refusal_of(task)) is not None:
            self._look_behind(queue_class, queue_class.first, refusal.limits)
            return False
        started = self._try_admit(task, queue_class)
        if isinstance(started, StartWouldDelay):
            self._look_behind(queue_class, queue_class.first, started.limits)
        elif not started and self._ahead and self._is_possible(task):
            # Others of the class, which are over sooner, may have room.
            self._look_behind(queue_class, queue_class.first, self._over_before())
        return started is True

    def _is_possible(self, task: QueuedTask) -> bool:
        """Whether nothing but the lack of quota or room keeps a task from starting."""
        return isinstance(understand(self._tx, task.submission), Request)

    def _requests(self, task: QueuedTask, queue_class: QueueClass) -> Iterator[Request]:
        """The request of a task in each of its ways in which it fits, the preferred one first. Ways in which
        it surely has no room are not looked at.
        """
        ways = self._ways(queue_class, task.submission)
        tried: Iterable[TaskSubmitted] = ways
        if len(ways) > 1:
            tried = open_ways(self._tx, queue_class, ways, is_noted=not self._ahead)
        for way in tried:
            request = understand_alone(self._tx, in_way(task.submission, way))
            if isinstance(request, Refused):
                continue
            if request.fits_now:
                yield request
            elif not self._ahead:
                self._note_no_room(request)

    def _over_before(self) -> RunTimes:
        """Within which run times a task may be over before one of the windows ahead."""
        now = self._tx.now
        opened = (window.occurrence(now) for window in self._ahead)
        longest = max(0.0 if one is None else one.start - now for one in opened)
        return RunTimes(longest, longest if self._tx.state.queue.policy.estimates else -inf)

    def _note_no_room(self, request: Request) -> None:
        """Note that a request does not fit, for others that ask for the same."""
        queue = self._tx.state.queue
        if request.payment.short:
            return  # what waits for quota needs more of a node
        if request.by_node:
            queue.no_room.add(request.stimulus.agent.node_labels, request.need)
        group_request = request.group_request
        # A spare reserved group depends on more than groups and room: on who else of the pool waits.
        if group_request is not None and group_request.spare is None:
            queue.no_group.add(kind_of(group_request))

    def _try_admit(self, task: QueuedTask, queue_class: QueueClass) -> bool | StartWouldDelay:
        """Start a task if it fits; whether it was started. Where that would delay a reserved start in each of
        its ways that fits, why in the first.
        """
        refusal: StartWouldDelay | None = None
        for request in self._requests(task, queue_class):
            allowed = self._backfill.permitted_or_noted(request, task)
            if isinstance(allowed, StartWouldDelay):
                refusal = refusal or allowed
                continue
            admit(self._tx, allowed, None)
            if task.reservation is not None:
                self._backfill.forget()
            return True
        return refusal or False

    def _serve_later(self, queue_class: QueueClass) -> bool:
        """Start a later task of a class where it ends soon enough; whether another one may."""
        entry = self._later[queue_class]
        task = self._tx.state.queue.by_id[entry[-1]]
        if self._borrowers is not None and self._would_borrow(queue_class, task):
            self._borrowers.append(queue_class)
            return False
        del self._later[queue_class]
        if entry not in queue_class.entries:
            self._look_behind(queue_class, entry, self._limits[queue_class])
            return queue_class in self._later
        started = self._backfill.refusal_of(task) or self._try_admit(task, queue_class)
        if started is False and not self._ahead:
            return False
        if isinstance(started, StartWouldDelay):
            self._limits[queue_class] = started.limits
        self._look_behind(queue_class, entry, self._limits[queue_class])
        return queue_class in self._later

    def _look_behind(self, queue_class: QueueClass, entry: Entry, limits: RunTimes) -> None:
        """Note the next task of a class behind this one that is over within the limits."""
        tx, queue = self._tx, self._tx.state.queue
        estimated = queue.policy.estimates
        if is_strict(tx, queue_class.pool_name):
            return
        limit_s = tx.state.ledger.accounts[queue_class.pool_name].spec.run_limit(None)
        shortest = min(queue_class.shortest, inf if limit_s is None else limit_s)
        if not estimated and shortest > limits.declared:
            return
        self._limits[queue_class] = limits
        begin = queue_class.entries.bisect_right(entry)
        # Half of what is left, so that no class takes all of it.
        most = max(self._looks // 2, _LOOKED_AT_LEAST)
        for later in queue_class.entries.islice(begin, begin + most):
            self._looks -= 1
            task = queue.by_id[later[-1]]
            need = need_of(tx.state, task)
            if run_times(tx, task.submission, task.pool_name, need).within(limits):
                self._later[queue_class] = later
                return
