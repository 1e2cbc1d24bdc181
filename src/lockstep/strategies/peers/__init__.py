"""Several processes that train in step: how they learn of each other, meet, agree, and notice that one is gone."""
