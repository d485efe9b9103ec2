"""Policies: where does a request go? One small file each, registered by name in registry.py."""

from pipeline.policies.base import Choice, Needs, Policy, Target
from pipeline.policies.registry import (
    DEFAULT_POLICY,
    POLICIES,
    check_policy,
    make_policy,
    policies_help,
)

__all__ = [
    "DEFAULT_POLICY",
    "POLICIES",
    "Choice",
    "Needs",
    "Policy",
    "Target",
    "check_policy",
    "make_policy",
    "policies_help",
]
