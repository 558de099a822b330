"""brownout drives drills: one declared experiment, one history, one verdict.

    drill = load_drill("scenarios/burst-survives-vram-pcie-nvlink.yaml")
    history = run(drill)                # baseline, faults, recovery, all on one clock
    verdict = judge(drill, history)     # a pure function; can be asked again years later

`drill` declares, `worlds` runs it, `history` keeps what happened, `judge` weighs it.
Heavy imports happen inside commands, so that `brownout --help` is quick.
"""
