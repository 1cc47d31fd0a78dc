"""relay.yaml: what is refused, by a title; the words are in settings_wordings.txt."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.config_files import KERBEROS, MINIMAL, PROVIDER, SASL, TOKEN, changed, refusal
from tests.support.wordings import Wordings

MIRROR = yaml.safe_load(MINIMAL)["mirrors"]["orders"]
Changes = dict[str, Any]


def security(wanted: Changes) -> Changes:
    return {"@node/security": wanted}


REFUSED: dict[str, dict[str, Changes]] = {
    "audits": {
        "no cron schedule": {"@/audit/schedule": "daily"},
        "an hour that no day has": {"@/audit/schedule": "0 24 * * *"},
        "a step of zero": {"@/audit/schedule": "*/0 * * * *"},
        "a range backwards": {"@/audit/schedule": "0 3 * * 5-1"},
        "a step from one value": {"@/audit/schedule": "5/10 * * * *"},
        "a share without a unit": {"@/audit/share": 1},
        "more than all": {"@/audit/share": "101%"},
        "nothing": {"@/audit/share": "0%"},
    },
    "clusters": {
        "two nodes of one name": {
            "@/source/nodes": [
                {"name": "n", "bootstrap_servers": ["a:1"]},
                {"name": "n", "bootstrap_servers": ["b:1"]},
            ]
        },
        "failover settings of a single node": {"@/source/health": {"lag_threshold": 5}},
        "a negative threshold": {"@/source/health": {"lag_threshold": -1}},
        "a node without a name": {"@node/name": ""},
        "a server without a port": {"@node/bootstrap_servers": ["kafka-a"]},
        "a server with a scheme": {"@node/bootstrap_servers": ["tcp://kafka-a:1"]},
        "a trailing comma": {"@node/bootstrap_servers": "a:1,"},
        "an unknown protocol": security({"protocol": "TLS"}),
        "an unsupported mechanism": security(SASL | {"mechanism": "NTLM"}),
        "GSSAPI with a password": security(KERBEROS | {"password": "p"}),
        "a keytab without a principal": security(KERBEROS | {"keytab": "relay.yaml"}),
        "a keytab that is not there": security(
            KERBEROS | {"principal": "relay@A", "keytab": "none"}
        ),
        "a ticket cache beside a keytab": security(
            KERBEROS
            | {"principal": "relay@A", "keytab": "relay.yaml", "ticket_cache": "relay.yaml"}
        ),
        "PLAIN with a principal": security(SASL | {"principal": "relay@A"}),
        "SASL without a mechanism": security(SASL | {"mechanism": None}),
        "SASL without a user": security(SASL | {"username": None}),
        "SASL without a password": security(SASL | {"password": None}),
        "OAUTHBEARER without a client secret": security(TOKEN | {"client_secret": None}),
        "OAUTHBEARER without a token endpoint": security(TOKEN | {"token_endpoint": None}),
        "OAUTHBEARER with a password": security(TOKEN | {"password": "p"}),
        "a token provider beside a token endpoint": security(
            PROVIDER | {"token_endpoint": "https://login.example.com/token"}
        ),
        "a token provider that is no name": security(
            PROVIDER | {"token_provider": "tokens: signed"}
        ),
        "a configuration without a token provider": security(
            TOKEN | {"token_provider_config": {"region": "eu"}}
        ),
        "a configuration that tasks cannot get": security(
            PROVIDER | {"token_provider_config": {"since": dt.date(2026, 1, 1)}}
        ),
        "PLAIN with a token provider": security(SASL | {"token_provider": "tokens:signed"}),
        "an extension that replaces the token": security(
            PROVIDER | {"sasl_extensions": {"auth": "x"}}
        ),
        "an extension with a line end": security(PROVIDER | {"sasl_extensions": {"pool": "a\n"}}),
        "PLAIN with a scope": security(SASL | {"scope": "kafka"}),
        "a client id without SASL": security({"protocol": "SSL", "client_id": "relay"}),
        "a token endpoint without a scheme": security(
            TOKEN | {"token_endpoint": "login.example.com/token"}
        ),
        "a token endpoint with a password in it": security(
            TOKEN | {"token_endpoint": "https://relay:hunter2@login.example.com/token"}
        ),
        "a mechanism that the protocol ignores": security({"mechanism": "PLAIN"}),
        "a password without SASL": security({"protocol": "SSL", "password": "x"}),
        "TLS settings without TLS": security({"verify_hostname": True}),
        "a key without a certificate": security({"protocol": "SSL", "key_password": "x"}),
        "a certificate file that does not exist": security(
            {"protocol": "SSL", "ca_location": "no.pem"}
        ),
        "a number as password": security(SASL | {"password": 12345}),
    },
    "config_keys": {
        "min.insync.replicas": {"@/topics/config_keys": ["retention.ms", "min.insync.replicas"]},
        "leader.replication.throttled.replicas": {
            "@/topics/config_keys": ["retention.ms", "leader.replication.throttled.replicas"]
        },
        "follower.replication.throttled.replicas": {
            "@/topics/config_keys": ["retention.ms", "follower.replication.throttled.replicas"]
        },
        "remote.storage.enable": {
            "@/topics/config_keys": ["retention.ms", "remote.storage.enable"]
        },
        "local.retention.ms": {"@/topics/config_keys": ["retention.ms", "local.retention.ms"]},
    },
    "expectations": {
        "a misspelt word": {"@/expectations": ["keys_not_nul"]},
        "a misspelt class": {"@/expectations": [{"ExpectColumnToExit": {}}]},
        "a value for a word without one": {"@/expectations": [{"keys_not_null": 3}]},
        "no size": {"@/expectations": [{"size_below": None}]},
        "text for a size": {"@/expectations": [{"size_below": "big"}]},
        "a misspelt type": {"@/expectations": [{"schema": {"a": "doubel"}}]},
        "a column that every record has": {"@/expectations": [{"schema": {"key": "int"}}]},
        "an invalid regular expression": {"@/expectations": [{"no_pii": ["["]}]},
        "a back-reference beside another expression": {
            "@/expectations": [{"no_pii": ["([a-z])\\\\1", "([0-9])\\1{3}"]}]
        },
        "a number for arguments": {"@/expectations": [{"expect_column_to_exist": 3}]},
        "two expectations in one entry": {
            "@/expectations": [{"keys_not_null": None, "json_parses": None}]
        },
        "a misspelt side": {"@/expectations": [{"keys_not_null": None, "side": "sourc"}]},
        "a warning that blocks": {
            "@/expectations": [{"keys_not_null": None, "severity": "warn", "blocking": True}]
        },
        "the name of another check": {
            "@/expectations": [{"keys_not_null": None, "name": "message_counts"}]
        },
    },
    "keys": {
        "a misspelt section": {"metric": {}},
        "a misspelt section without a value": {"metric": None},
        "a misspelt key deep down": {"@node/bootstrap_server": []},
        "a misspelt copy key": {"@/copy/chunks": 1},
        "a misspelt backoff key": {"@/copy/backoff": {"maxi": "1s"}},
        "a key that resembles no other": {"@/health": {}},
        "the attribute's name instead of the key's": {"@/copying": {}},
        "no mirrors": {"mirrors": {}},
        "mirrors left empty": {"mirrors": None},
        "a mirror left empty": {"mirrors/orders": None},
        "no destination": {"@/destination": None},
        "no nodes": {"@/source/nodes": []},
        "no bootstrap servers": {"@node/bootstrap_servers": []},
        "no allow pattern": {"@/topics/allow": []},
    },
    "mirrors": {
        "a mirror name that would split a checkpoint key": {"mirrors/a~b": MIRROR},
        "mirror names that Dagster cannot tell apart": {
            f"mirrors/{name}": MIRROR for name in ("a_b-c", "a-b_c", "a-b-d")
        },
        "an owner without a kind": {"@/owners": ["data"]},
        "a team without a name": {"@/owners": ["team:"]},
        "an owner that is not in a list": {"@/owners": "team:a"},
        "a port that does not exist": {"metrics/address": "localhost:70000"},
        "a metrics file in a missing folder": {"metrics/textfile": "no/such/relay.prom"},
        "an empty master": {"spark": {"master": ""}},
        "a misspelt master": {"spark": {"master": "locl[2]"}},
        "no cores": {"spark": {"master": "local[0]"}},
        "a scheme that Spark does not have": {"spark": {"master": "sprk://h:7077"}},
        "a token without its name": {"spark": {"remote": "sc://spark:1/;hunter2"}},
        "a port of letters, before a token": {"spark": {"remote": "sc://spark:abc/;token=hunter2"}},
        "a password in an address": {"@node/bootstrap_servers": ["user:hunter2@kafka:9092"]},
        "a date that does not exist": {"@/start": {"timestamp": "2026-02-30"}},
        "a master and a remote": {"spark": {"master": "local[1]", "remote": "sc://spark:15002"}},
        "a remote without its scheme": {"spark": {"remote": "spark:15002"}},
        "speculation": {"spark/conf": {"spark.speculation": True}},
        "speculation as text": {"spark/conf": {"spark.speculation": " TRUE"}},
        "spark.master in conf, where it has no effect": {"spark/conf": {"spark.master": "local"}},
    },
    "topics": {
        "an invalid regular expression in allow": {"@/topics/allow": ["ok", "orders("]},
        "a regular expression that ends with the line end of a folded block": {
            "@/topics/allow": ["ok", "orders|payments\n"]
        },
        "a rule that ends with the line end of a folded block": {
            "@/topics/rename": [{"match": "a(.*)\n", "to": "b\\1"}]
        },
        "an invalid regular expression in deny": {"@/topics/deny": ["*"]},
        "a template that gives all topics one name": {"@/topics/rename": "all"},
        "a template with another placeholder": {"@/topics/rename": "{topic}.{date}"},
        "a template that pins an illegal name": {"@/topics/rename": "{topic}/a:3"},
        "a template that makes internal topics": {"@/topics/rename": "__{topic}"},
        "a group that does not exist": {"@/topics/rename": [{"match": "a(.*)", "to": "\\g<x>"}]},
        "a group that does not exist beside one that does": {
            "@/topics/rename": [{"match": "a(.*)", "to": "\\1\\g<x>"}]
        },
        "a configuration with half a character, which no request can name": {
            "@/topics/config_keys": ["retention.ms", "\ud800"]
        },
        "a list for rename": {"@/topics/rename": ["a"]},
        "a number for rename": {"@/topics/rename": 5},
        "a rule with an invalid regular expression": {
            "@/topics/rename": [{"match": "a(", "to": "b"}]
        },
        "a rule that refers to a group that does not exist": {
            "@/topics/rename": [{"match": "a(.*)", "to": "b\\2"}]
        },
        "a rule with an illegal name": {"@/topics/rename": [{"match": "a(.*)", "to": "b/\\1"}]},
        "{topic} without quotes, which is a mapping in YAML": {"@/topics/rename": {"topic": None}},
        "a pinned destination with an illegal name": {"@/topics/rename": {"a": "d/t:3"}},
        "a destination that only one of its two topics pins": {
            "@/topics/rename": {"a": "c", "b": "c:0"}
        },
        "a destination with an illegal name": {"@/topics/rename": {"a": "b/c"}},
        "a number as destination": {"@/topics/rename": {"a": 1}},
        "two topics renamed to one": {"@/topics/rename": {"a": "c", "b": "c"}},
        "an override that contradicts the mirror": {
            "@/copy": {"coalesce_to": "16KiB"},
            "@/topics/overrides": {"big": {"copy": {"coalesce_below": "32KiB"}}},
        },
        "an override of a key that all topics share": {
            "@/topics/overrides": {"big": {"copy": {"request_timeout": "5s"}}}
        },
        "an override whose lane name is taken": {
            "@/lanes": {"big": {"topics": ["x"]}},
            "@/topics/overrides": {"big": {"window": {"keep": 2}}},
        },
        "an override of a pattern without a letter": {
            "@/topics/overrides": {".*": {"window": {"keep": 2}}}
        },
        "an override with an unknown key": {"@/topics/overrides": {"big": {"chunk": "1MiB"}}},
        "a filter whose class name is invalid": {"@/filters": [{"class": "a b"}]},
        "a filter without a class": {"@/filters": [{"config": {}}]},
        "a column that no record has": {"@/select": {"vaule": "1"}},
        "an empty predicate": {"@/where": ""},
        "an unknown policy for records": {"@/on_record_error": "skip"},
    },
    "values": {
        "text for a mapping": {"@/source": "kafka-a:9092"},
        "a mapping for a list": {"@/source/nodes": {"name": "n"}},
        "text for a list": {"@/topics/allow": "orders"},
        "a number for text": {"@node/name": 1},
        "text for a boolean": security({"verify_hostname": "perhaps"}),
        "a list for a Spark setting": {"spark/conf": {"spark.jars": ["x"]}},
        "nothing for a Spark setting": {"spark/conf": {"spark.jars": None}},
        "true for a count, which pydantic takes for 1": {"@/copy/parallelism": True},
        "a parallelism of one and a half": {"@/copy/parallelism": 1.5},
        "a parallelism of zero": {"@/copy/parallelism": 0},
        "a replication factor of zero": {"@/destination/replication_factor": 0},
        "more replicas than an int16 holds": {"@/destination/replication_factor": 40000},
        "a duration without a unit": {"@/copy/chunk_interval": 5},
        "YAML's 1:30, which is the number 90": {"@/copy/chunk_interval": 90},
        "a size's unit on a duration": {"@/copy/chunk_interval": "5MB"},
        "a duration of zero": {"@/copy/request_timeout": "0s"},
        "half a millisecond": {"@/copy/request_timeout": "0.5ms"},
        "a give_up_after of zero": {"@/give_up_after": "0s"},
        "a negative give_up_after": {"@/give_up_after": -2},
        "a give_up_after that is a list": {"@/give_up_after": ["60s"]},
        "a duration that overflows an int32": {"@/copy/request_timeout": "25d"},
        "a size without a number": {"@/copy/chunk": "lots"},
        "a negative size": {"@/copy/chunk": -1},
        "true for a size": {"@/copy/chunk": True},
        "a size of zero": {"@/copy/chunk": 0},
        "a size that overflows an int32": {"@/copy/fetch_max": "2GiB"},
        "coalesce_below above coalesce_to": {
            "@/copy": {"coalesce_to": "1KiB", "coalesce_below": "2KiB"}
        },
        "a backoff whose min exceeds its max": {"@/copy/backoff": {"min": "9s"}},
        "chunks that take longer than a transaction may": {"@/copy/transaction_timeout": "5s"},
        "a rate so low that transactions time out": {"@/copy": {"max_bytes_per_second": "1KiB"}},
    },
    "windows": {
        "a window interval of zero": {"@/window/every": "0s"},
        "a window interval without a unit": {"@/window/every": 30},
        "windows of zero records": {"@/window/max_records": 0},
        "windows of more records than a topic can have": {"@/window/max_records": 2**63},
        "a count with a unit": {"@/window/max_records": "10M"},
        "windows of zero bytes": {"@/window/max_bytes": 0},
        "a duration for a size": {"@/window/max_bytes": "1s"},
        "a session without a unit": {"@/window/session": 900},
        "no window kept": {"@/window/keep": 0},
        "a target without a unit": {"@/window/lag_target": 600},
        "a misspelt window key": {"@/window/max_record": 1},
        "a lane of no topics": {"@/lanes/big": {"topics": []}},
        "a lane left empty": {"@/lanes/big": None},
        "a lane without topics": {"@/lanes/big": {"window": {}}},
        "a lane with an invalid regular expression": {"@/lanes/big": {"topics": ["("]}},
        "a misspelt lane key": {"@/lanes/big": {"topics": ["a"], "windows": {}}},
        "a misspelt key in the window of a lane": {
            "@/lanes/big": {"topics": ["a"], "window": {"evry": "1s"}}
        },
        "the lane main, which always exists": {"@/lanes/main": {"topics": ["a"]}},
        "a lane name that Dagster does not accept": {"@/lanes/big-ones": {"topics": ["a"]}},
        "an unknown word for start": {"@/start": "timestamp"},
        "two places to start": {"@/start": {"timestamp": "2026-01-01", "group": "g"}},
        "a timestamp that is no date": {"@/start": {"timestamp": "noon"}},
        "an offset without a partition": {"@/start": {"offsets": {"orders": 5}}},
        "a negative offset": {"@/start": {"offsets": {"orders-0": -1}}},
    },
}


@pytest.mark.parametrize(
    ("title", "changes"),
    [(f"{of}: {title}", each) for of, some in REFUSED.items() for title, each in some.items()],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_is_refused_in_one_line(
    write_config: Callable[[str], Path], wordings: Wordings, title: str, changes: Changes
) -> None:
    """It begins with the place of the mistake."""
    path = write_config(changed(changes))
    said = refusal(path).removeprefix(f"{path}: ")
    assert re.match(r"[^ :]+: [^\n]+$", said)
    wordings.check(title, said)
