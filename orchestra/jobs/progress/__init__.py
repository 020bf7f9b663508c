"""How far a job is, how fast it goes, and what it costs: so far (``progress``, ``pace``), and beforehand
(``forecast``)."""
