"""What jobs and their nodes cost, what projects with a budget spent, and how much jobs store."""
