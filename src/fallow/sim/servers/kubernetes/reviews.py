"""Who is it, and may they? Token and access reviews, and the same rules for the requests themselves.

In: the tokens that are known and, for some users, rules as in a ClusterRole. A user without rules may do everything.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from fallow.sim.servers.kubernetes import calls, refusals

Object: TypeAlias = dict[str, Any]
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "GET": "get"}


class Doorkeeper:
    """`tokens`: token -> user; None lets everybody in as the administrator. `rules`: user name -> PolicyRules."""

    def __init__(self, tokens: Mapping[str, calls.ApiUser] | None, rules: Mapping[str, Sequence[Object]]) -> None:
        self._tokens, self._rules = tokens, rules

    def identify(self, headers: Mapping[str, str]) -> calls.ApiUser:
        user = calls.ApiUser("kubernetes-admin", ("system:masters", "system:authenticated"))
        if self._tokens is not None:
            token = headers.get("Authorization", "").removeprefix("Bearer ")
            if token not in self._tokens:
                raise refusals.ApiRefusal(401, "Unauthorized")
            user = self._tokens[token]
        if name := headers.get("Impersonate-User"):
            groups = [value for key, value in headers.items() if key.lower() == "impersonate-group"]
            return calls.ApiUser(name, (*groups, "system:authenticated"))
        return user

    def check(self, call: calls.Call) -> None:
        if call.kind.kind.startswith("SelfSubject"):  # everybody may ask about themselves
            return
        attributes = {
            "verb": _find_verb(call), "group": call.kind.group, "resource": call.kind.plural,
            "subresource": call.path.subresource, "name": call.path.name, "namespace": call.path.namespace,
        }
        if not self.is_allowed(call.user.name, attributes):
            raise _forbid(call, attributes)

    def is_allowed(self, user: str, asked: Mapping[str, str]) -> bool:
        return user not in self._rules or any(_covers(rule, asked) for rule in self._rules[user])

    def answer(self, call: calls.Call) -> calls.ApiAnswer:
        """A review: nothing is stored, the status is the answer."""
        body = call.read_object()
        kind, spec = call.kind.kind, body.get("spec") or {}
        if kind == "SelfSubjectReview":
            status: Object = {"userInfo": _describe(call.user)}
        elif kind == "TokenReview":
            status = self._review_token(str(spec.get("token") or ""))
        else:
            status = self._review_access(call, kind, spec)
        answer = {"kind": kind, "apiVersion": call.kind.api_version, "metadata": {}, "spec": spec, "status": status}
        return calls.ApiAnswer(msgspec.json.encode(answer), 201)

    def _review_token(self, token: str) -> Object:
        if user := (self._tokens or {}).get(token):
            return {"authenticated": True, "user": _describe(user)}
        return {"user": {}, "error": "invalid bearer token"}

    def _review_access(self, call: calls.Call, kind: str, spec: Mapping[str, Any]) -> Object:
        user = call.user.name if kind == "SelfSubjectAccessReview" else str(spec.get("user") or "")
        asked = spec.get("resourceAttributes") or spec.get("nonResourceAttributes")
        if not asked:
            message = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
            raise call.invalid("", ("spec.resourceAttributes", "FieldValueInvalid", f"Invalid value: null: {message}"))
        return {"allowed": self.is_allowed(user, asked)}


def _describe(user: calls.ApiUser) -> Object:
    return {"username": user.name, "groups": list(user.groups)}


def _find_verb(call: calls.Call) -> str:
    if call.method == "GET" and not call.path.name:
        return "watch" if call.query.get("watch") in ("1", "true") else "list"
    if call.method == "DELETE" and not call.path.name:
        return "deletecollection"
    return _VERBS.get(call.method, call.method.lower())


def _covers(rule: Mapping[str, Any], asked: Mapping[str, str]) -> bool:
    part = asked.get("subresource")
    resource = f"{asked.get('resource', '')}/{part}" if part else asked.get("resource", "")
    names = rule.get("resourceNames")
    return (
        bool({asked.get("verb"), "*"} & set(rule.get("verbs") or ()))
        and bool({asked.get("group") or "", "*"} & set(rule.get("apiGroups") or ()))
        and bool({resource, "*"} & set(rule.get("resources") or ()))
        and (not names or asked.get("name") in names)
    )


def _forbid(call: calls.Call, asked: Mapping[str, str]) -> refusals.ApiRefusal:
    kind = call.kind
    part = f"/{asked['subresource']}" if asked["subresource"] else ""
    where = f'in the namespace "{asked["namespace"]}"' if asked["namespace"] else "at the cluster scope"
    target = refusals.qualify(kind.plural, kind.group) + (f' "{call.path.name}"' if call.path.name else "")
    message = (
        f'{target} is forbidden: User "{call.user.name}" cannot {asked["verb"]} resource "{kind.plural}{part}" in API '
        f'group "{kind.group}" {where}'
    )
    return refusals.ApiRefusal(403, message, details=refusals.details(call.path.name, kind.group, kind.plural))
