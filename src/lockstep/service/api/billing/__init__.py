"""Routes for costs, and bills, budgets and node costs as JSON."""
