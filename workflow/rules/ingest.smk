# A damaged scene gets a record that says failed, and exit code 0; exit code 1 is only for what a retry can mend.
rule to_cog:
    input:
        sources=sources,
    output:
        record="<results>/cogs/{scene}/record.json",
    log:
        "<logs>/to_cog/{scene}.log",
    benchmark:
        "<benchmarks>/to_cog/{scene}.jsonl"
    conda:
        "../../envs/cog.yaml"
    threads: 2
    resources:
        mem_mb=ingest_mb,
        runtime=growing(10),
    params:
        row=ingest_param("row"),
        sensor=ingest_param("sensor"),
        bands=ingest_param("bands"),
        cog=ingest_param("cog"),
        phase=PHASE_VERSION["ingest"],
        watched=watched,
        max_attempts=max_attempts,
        spool_mb=spool_mb,
    message:
        "Storing the bands of scene {wildcards.scene} as Cloud Optimized GeoTIFFs."
    script:
        "../../scripts/to_cog.py"
