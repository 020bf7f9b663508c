"""A day of traffic in seconds: the client as it is, in a world that is simulated.

::

    traffic      generated (rate, shape of the day, jobs) or a recorded log of events
    simulation   lets it come, through the real budget, dispatcher and jobs
    wire, engine, batch_endpoint   answer as slowly as a network, an engine, a provider's batches would
    virtual_loop                   is the time that all of them go by
    tally, summing_up, findings    what came of it, from the events that the real parts tell
"""
