"""Lines that go by themselves: ``runner`` sends them, ``verdict`` judges their answers, and ``patience`` says how
long a provider is borne that only fails."""
