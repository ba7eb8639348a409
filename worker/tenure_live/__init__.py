"""The live side: a model's path, and only when its warrant, its files and this environment agree."""

from tenure_live.loader import Model, load_model
from tenure_live.refusal import Refused, WrongCall
from tenure_protocol.store.api import StoreSilent

__all__ = ["Model", "Refused", "StoreSilent", "WrongCall", "load_model"]
