# A batch is the unit of scheduling, a scene the unit of failure: products are not declared, or one bad scene would
# delete those of all others. No update() and no shadow here: both let finished products vanish unseen.
rule compute:
    input:
        cogs=batch_cogs,
        grids=batch_grids,
    output:
        ledger="<results>/ledger/{batch}.jsonl",
    log:
        "<logs>/compute/{batch}.log",
    benchmark:
        "<benchmarks>/compute/{batch}.jsonl"
    conda:
        "../../envs/gpu.yaml"
    threads: compute_threads()
    resources:
        # Slurm's plugin gives GPUs by `gpu`, its job step by either; the two must be one number
        nvidia_gpu=GPUS,
        gpu=GPUS,
        mem_mb=compute_mb,
        runtime=growing(60),
    params:
        scenes=batch_scenes,
        spec=batch_params,
        phase=PHASE_VERSION["compute"],
        home=product_home,
        run=run_params,
        strict=False,
    message:
        "Computing the products of batch {wildcards.batch}."
    script:
        "../../scripts/compute.py"


# Remakes what a ledger calls done and is not there. Strict: what cannot be remade must not stay unseen, unless
# the ledger, which `compute` may write anew just before, calls it failed.
use rule compute as repair with:
    input:
        ledger=ancient("<results>/ledger/{batch}.jsonl"),
        cogs=batch_cogs,
        grids=batch_grids,
    output:
        marker=touch("<results>/ledger/{batch}.repaired"),
    log:
        "<logs>/repair/{batch}.log",
    benchmark:
        "<benchmarks>/repair/{batch}.jsonl"
    params:
        scenes=repair_scenes,
        strict=ledger_path,
    message:
        "Remaking the missing products of batch {wildcards.batch}."


# For people and for importing workflows: snakemake results/products/SCENE/PRODUCT.tif
use rule compute as product with:
    input:
        cogs="<results>/cogs/{scene}/record.json",
        grids="<results>/grids/{scene}/record.json",
    output:
        product="<results>/products/{scene}/{product}.tif",
    log:
        "<logs>/product/{scene}.{product}.log",
    benchmark:
        "<benchmarks>/product/{scene}.{product}.jsonl"
    params:
        scenes=lambda wildcards: [wildcards.scene],
        spec=product_params,
        strict=True,
    message:
        "Computing product {wildcards.product} of scene {wildcards.scene}."
