"""Issues, rotates, changes and revokes tokens, and has calls need one."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.reasons import Change, Reason
from schedulemesh.domain.sentences import Sentence, did_you_mean, say
from schedulemesh.domain.tokens import MAX_TOKENS, Role, TokenSpec, contradiction
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Done, Refused, RequestOutcome
from schedulemesh.engine.messages.token_facts import (
    AuthenticationEnabled,
    TokenIssued,
    TokenRevoked,
)
from schedulemesh.engine.transaction import Transaction

#: Pools that do not exist of which each gets a warning of its own.
_WARNED = 10


def issue_token(tx: Transaction, stimulus: s.TokenRequested) -> RequestOutcome:
    """A new token, or a new secret for one that exists, whose role and limits stay; without a lifetime it is
    valid for as long again.
    """
    token = tx.state.tokens.get(stimulus.spec.name)
    if stimulus.rotate and token is None:
        return _not_found(tx, stimulus.spec.name)
    if not stimulus.rotate and token is not None and token.valid(tx.now):
        if _is_same(token, stimulus):
            return Done(change=Change.CREATED)
        return Refused(
            reason=Reason.TOKEN_EXISTS,
            error_text=say("token_is_valid", token=token.name),
        )
    expires = stimulus.rotate and stimulus.lifetime_s is not None
    if expires and token and (last := _last_operator(tx, token)) is not None:
        return last
    same = tx.state.tokens.by_hash.get(stimulus.spec.secret_hash)
    if same is not None and same.name != stimulus.spec.name:
        return Refused(
            reason=Reason.TOKEN_EXISTS,
            error_text=say("secret_taken", token=same.name),
        )
    if token is None and len(tx.state.tokens) >= MAX_TOKENS:
        return Refused(
            reason=Reason.TOO_MANY_TOKENS,
            error_text=say("most_tokens", count=MAX_TOKENS),
        )
    tx.emit(TokenIssued(spec=_issued(tx, stimulus, token if stimulus.rotate else None)))
    change = Change.CHANGED if stimulus.rotate else Change.CREATED
    warnings = () if stimulus.rotate else _without_pool(tx, stimulus.spec)
    return Done(change=change, warning_texts=warnings)


def _without_pool(tx: Transaction, spec: TokenSpec) -> tuple[Sentence, ...]:
    """A warning for each pool that a token names and that there is not yet; of many for the first of them."""
    pools = tx.state.ledger.accounts
    named = dict.fromkeys((*spec.pools, *(spec.evict_pools or ())))
    missing = [name for name in named if name not in pools]
    warnings = tuple(
        say("token_without_pool", pool=name, near=did_you_mean(name, pools), token=spec.name)
        for name in missing[:_WARNED]
    )
    if len(missing) <= _WARNED:
        return warnings
    return (*warnings, say("token_without_pools", count=len(missing) - _WARNED))


def _is_same(token: TokenSpec, stimulus: s.TokenRequested) -> bool:
    """Whether a token was issued for this request, which is repeated: nobody else has its secret."""
    spec, lifetime_s = stimulus.spec, stimulus.lifetime_s
    expires_at = spec.expires_at if lifetime_s is None else token.created_at + lifetime_s
    return token == msgspec.structs.replace(
        spec, created_at=token.created_at, created_by=stimulus.client, expires_at=expires_at
    )


def _issued(tx: Transaction, stimulus: s.TokenRequested, token: TokenSpec | None) -> TokenSpec:
    lifetime_s, spec = stimulus.lifetime_s, stimulus.spec
    if lifetime_s is None and token and token.expires_at is not None:
        lifetime_s = token.expires_at - token.created_at
    base = msgspec.structs.replace(token, secret_hash=spec.secret_hash) if token else spec
    expires_at = spec.expires_at if lifetime_s is None else tx.now + lifetime_s
    return msgspec.structs.replace(
        base, created_at=tx.now, created_by=stimulus.client, expires_at=expires_at
    )


def change_token(tx: Transaction, stimulus: s.TokenChangeRequested) -> RequestOutcome:
    """A token has another role, other limits or another expiry, and the same secret. Another role than that
    of a submitter has no limits.
    """
    token = tx.state.tokens.get(stimulus.name)
    if token is None:
        return _not_found(tx, stimulus.name)
    changed = _changed(token, stimulus)
    if changed == token:
        return Done(change=Change.UNCHANGED)
    if (error := contradiction(changed)) is not None:
        return Refused(reason=Reason.TOKEN_CONTRADICTION, error_text=error)
    if not changed.lasting_operator and (last := _last_operator(tx, token)) is not None:
        return last
    tx.emit(TokenIssued(spec=changed))
    return Done(change=Change.CHANGED, warning_texts=_without_pool(tx, changed))


#: The fields that limit a submitter.
LIMITS = (
    "pools",
    "max_priority",
    "evict_pools",
    "label_values",
    "least_max_preemptions",
    "owner",
)


def _changed(token: TokenSpec, stimulus: s.TokenChangeRequested) -> TokenSpec:
    fields = ("role", *LIMITS, "expires_at")
    requested = {name: getattr(stimulus, name) for name in fields}
    changes = {name: value for name, value in requested.items() if value is not msgspec.UNSET}
    role = changes.get("role", token.role)
    if role in (Role.VIEWER, Role.OPERATOR) or (role != token.role and token.pools):
        none = {field.name: field.default for field in msgspec.structs.fields(TokenSpec)}
        none["label_values"] = {}
        changes = {**{name: none[name] for name in LIMITS}, **changes}
    return msgspec.structs.replace(token, **changes)


def revoke_token(tx: Transaction, stimulus: s.TokenRevocationRequested) -> RequestOutcome:
    """A token is accepted no more."""
    token = tx.state.tokens.get(stimulus.name)
    if token is None:
        return _not_found(tx, stimulus.name)
    if (last := _last_operator(tx, token)) is not None:
        return last
    tx.emit(TokenRevoked(name=token.name, at=tx.now, client=stimulus.client))
    return Done()


def _last_operator(tx: Transaction, token: TokenSpec) -> Refused | None:
    """The refusal to end or limit the only operator's token that does not expire: somebody must always be
    able to issue others.
    """
    lasting = [token.name for token in tx.state.tokens.values() if token.lasting_operator]
    if lasting != [token.name]:
        return None
    return Refused(
        reason=Reason.LAST_OPERATOR,
        error_text=say("only_operator", token=token.name),
    )


def enable_authentication(tx: Transaction, stimulus: s.AuthenticationRequested) -> RequestOutcome:
    """Calls over Ray need a token from now on. The first token is issued only together with this: later, who
    has none is not to get in by starting the supervisor anew.
    """
    tokens = tx.state.tokens
    if tokens.required:
        return Done(change=Change.UNCHANGED)
    first = stimulus.first
    if not any(token.secret_hash == first.secret_hash for token in tokens.values()):
        tx.emit(TokenIssued(spec=msgspec.structs.replace(first, created_at=tx.now)))
    tx.emit(AuthenticationEnabled(at=tx.now))
    return Done(change=Change.CHANGED)


def _not_found(tx: Transaction, name: str) -> Refused:
    names = sorted(tx.state.tokens)
    tokens = say("names", names=names) if names else say("none")
    return Refused(
        reason=Reason.TOKEN_NOT_FOUND, error_text=say("no_token", token=name, tokens=tokens)
    )
