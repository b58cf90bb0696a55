"""Tests of the speculation controller."""
