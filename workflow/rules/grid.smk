# The grid itself lies beside the record, undeclared: a failed scene has none.
rule warp_grid:
    input:
        record="<results>/cogs/{scene}/record.json",
        like=like_files,
    output:
        record="<results>/grids/{scene}/record.json",
    log:
        "<logs>/warp_grid/{scene}.log",
    benchmark:
        "<benchmarks>/warp_grid/{scene}.jsonl"
    conda:
        "../../envs/grid.yaml"
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(5),
    params:
        grid=grid_params,
        phase=PHASE_VERSION["grid"],
        watched=like_marks,
    message:
        "Placing scene {wildcards.scene} on its target grid."
    script:
        "../../scripts/warp_grid.py"
