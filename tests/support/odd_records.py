"""Records of every kind that a broker accepts, and the codecs of their batches."""

from tests.support.independent import CREATE_TIME, Record

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
ODD = [
    Record(None, b"no key"),
    Record(b"tombstone", None),
    Record(None, None),
    Record(b"", b""),
    Record(b"empty value", b""),
    Record(
        b"headers", b"v", (("a", b"1"), ("a", b"2"), ("", b""), ("null", None), ("ü", b"\x00\xff"))
    ),
    Record(b"early", b"v", (), (CREATE_TIME, 1)),
    Record(b"late", b"v", (), (CREATE_TIME, 1_600_000_000_000)),
    Record(bytes(range(256)), bytes(range(256))),
]
