"""Parses documents into models: scalar types, rules, YAML. The other subpackages of jobs use it for their documents."""
