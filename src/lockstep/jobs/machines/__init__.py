"""Provides machine types, accelerators and scale tiers, with their list prices."""
