"""The patches of other libraries' functions, which `uninstrument` removes again."""
