"""Families of programs in the style of public code, right ones and wrong ones."""
