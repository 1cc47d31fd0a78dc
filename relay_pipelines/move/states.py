"""How far a move can come, what changes that, and what stops producers."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """How far a move has come; docs/move.md says what is true in each."""

    NONE = "not begun"
    FENCING = "fencing"
    FENCED = "fenced"
    CUTTING = "cutting"
    CUT = "cut"
    RETURNING = "returning"
    LIFTING = "lifting"
    BACK = "taken back"


class Action(StrEnum):
    """What changes the state."""

    FENCE = "fence"
    CUT = "cut"
    CUT_WITHOUT_SOURCE = "cut --without-source"
    BACK = "back"


class FenceBy(StrEnum):
    """What stops the producers."""

    ACL = "acl"
    HAND = "hand"
