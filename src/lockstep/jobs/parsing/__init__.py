"""From documents to models: scalar types, rules, YAML. The other rooms read their documents with it."""
