"""The main job, measured: interactive questions beside a bulk job, on one engine in this process."""

__all__: list[str] = []
