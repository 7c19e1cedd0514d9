"""Symbolic execution of device code: every path of a function as an ordered list of memory events.

A spelling is never compared.  What a function does is read by running it: locals, references, casts,
``?:``, ``if``, ``switch``, early returns and helpers all dissolve into the same events.
"""

from patcher.machine.events import Barrier, Call, Event, Fence, Load, Opaque, Rmw, Scope, Site, Store
from patcher.machine.machine import Machine, Path, TooComplex
from patcher.machine.terms import Term

__all__ = ["Barrier", "Call", "Event", "Fence", "Load", "Machine", "Opaque", "Path", "Rmw", "Scope", "Site", "Store", "Term", "TooComplex"]
