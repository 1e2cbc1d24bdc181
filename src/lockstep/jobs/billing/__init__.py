"""What jobs, their nodes and what they store cost; budgets and prices."""
