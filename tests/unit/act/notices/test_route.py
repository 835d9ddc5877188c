"""Whom a notice goes to: what owners wish, what operators allow, and what is nobody's address."""

import msgspec
import pytest
from tests.unit.act import examples

from fallow.act.notices import route
from fallow.model import decision
from fallow.model.policies import idle

SLACK = idle.Channel("team", "slack", (("channel", "#gpu"),))
MAIL = idle.Channel("post", "email", (("to", "ops@example.com, nobody"),))
DOMAINS = frozenset({"example.com", "b.com"})
PAGER = idle.Channel("pager", "pagerduty")


def find(
    *channels: idle.Channel, namespace: str = "team-ml-a", by_map: route.Mentions | None = None, **wishes: str
) -> route.Routing:
    thing = examples.identified(examples.make("apps/v1", "Deployment", {"replicas": 3}))
    thing["metadata"]["namespace"] = namespace
    finding = examples.finding_of(examples.workload_of(thing))
    finding = msgspec.structs.replace(finding, wishes=decision.Wishes(**wishes))
    return route.find(finding, channels, by_map or {}, DOMAINS)


def test_without_a_wish_the_channels_say_where():
    assert [(each.room, each.addresses) for each in find(SLACK, MAIL, PAGER).routes] == [
        ("#gpu", ()), ("", ("ops@example.com",)), ("", ()),
    ]


def test_owners_name_rooms_people_and_addresses():
    found = find(SLACK, MAIL, notify="slack:#ml, slack:<@U1>, email:ana@example.com", owner="ben@example.com")
    assert [(each.room, each.is_wish) for each in found.routes if each.channel is SLACK] == [("#ml", True)]
    [letter] = [each for each in found.routes if each.channel is MAIL]
    assert letter.addresses == ("ops@example.com", "ana@example.com", "ben@example.com")
    assert found.mentions == ("<@U1>",)


@pytest.mark.parametrize("notify", [
    "pagerduty", "webhook:secret", "slack:@everyone", "slack:<!everyone>", "slack:#a b", "slack:<@U1|x>", "::", ",,",
    "email:a@b", "email:a@b.c\nBcc: d@e.fg", "teams:https://evil.example", "slack:# ", "email:\"x y\"@b.com",
])
def test_what_has_no_such_form_is_nobodys_wish(notify: str):
    assert find(SLACK, MAIL, notify=notify) == find(SLACK, MAIL)


def test_no_tenant_opens_a_channel_that_the_operator_did_not_give():
    assert [each.channel for each in find(SLACK, notify="pagerduty,email:ana@example.com").routes] == [SLACK]


def test_nobody_to_write_to_is_no_route():
    assert find(idle.Channel("post", "email")).routes == ()


@pytest.mark.parametrize(("namespace", "whom"), [
    ("team-ml-a", "<@U2>"), ("team-ml-b", "<!subteam^S1>"), ("team-b", "<!here>"), ("team-", "<!here>"), ("x", None),
])
def test_mentions_go_by_the_namespace_or_its_longest_beginning(namespace: str, whom: str | None):
    mentions = {"team-": "<!here>", "team-ml-": "<!subteam^S1>", "team-ml-a": "<@U2>", "x-y": "<@U9>", "": "<@U8>"}
    assert find(SLACK, namespace=namespace, by_map=mentions).mentions == ((whom,) if whom else ())


@pytest.mark.parametrize("wishes", [{"notify": "slack:<@U1>"}, {"mentions": "ask <@U1>!"}], ids=["notify", "alias"])
def test_what_the_owner_says_comes_before_the_map(wishes: dict[str, str]):
    assert find(SLACK, by_map={"team-": "<!here>"}, **wishes).mentions == ("<@U1>",)


def test_a_crowd_is_not_written_to():
    many = ",".join(f"email:a{number}@example.com" for number in range(40))
    [letter] = find(MAIL, notify=many).routes
    assert len(letter.addresses) == 10


@pytest.mark.parametrize("address", ["victim@elsewhere.example", "a@notexample.com", "a@example.com.evil.org"])
def test_nobody_makes_us_write_to_strangers(address: str):
    [letter] = find(MAIL, notify=f"email:{address}", owner=address).routes
    assert letter.addresses == ("ops@example.com",)


def test_nobody_makes_us_speak_in_every_room():
    rooms = ",".join(f"slack:#room-{number}" for number in range(3000))
    assert len(find(SLACK, notify=rooms).routes) == 5
