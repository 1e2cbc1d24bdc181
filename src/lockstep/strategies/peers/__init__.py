"""Processes that train in step: how they find each other, meet, compare what they run, and detect a lost peer."""
