rule report:
    input:
        ledgers=expand("<results>/ledger/{batch}.jsonl", batch=CAMPAIGN.batches),
        cogs=expand("<results>/cogs/{scene}/record.json", scene=CAMPAIGN.scenes),
        grids=expand("<results>/grids/{scene}/record.json", scene=CAMPAIGN.scenes),
    output:
        html=report(
            "<results>/report/report.html",
            caption="../report/campaign.rst",
            category="Campaign",
        ),
        methods=report(
            "<results>/report/methods.yaml",
            caption="../report/methods.rst",
            category="Campaign",
        ),
    log:
        "<logs>/report.log",
    benchmark:
        "<benchmarks>/report.jsonl"
    conda:
        "../../envs/report.yaml"
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(30),
    params:
        home=product_home,
        scenes=list(CAMPAIGN.scenes),
        max_failed_fraction=CAMPAIGN.config.max_failed_fraction,
        spec=CAMPAIGN.compute_params(list(CAMPAIGN.scenes)),
        run=run_params,
    message:
        "Writing the methods report of the campaign."
    script:
        "../../scripts/report.py"


# Apart from the report: a rule that fails loses its outputs, and the report must stay. Nothing here that a second
# attempt could mend, so the retries of the profile do not apply.
rule verdict:
    input:
        report="<results>/report/report.html",
        ledgers=expand("<results>/ledger/{batch}.jsonl", batch=CAMPAIGN.batches),
    output:
        verdict="<results>/report/verdict.txt",
    log:
        "<logs>/verdict.log",
    retries: 0
    localrule: True
    conda:
        "../../envs/report.yaml"
    threads: 1
    params:
        scenes=list(CAMPAIGN.scenes),
        max_failed_fraction=CAMPAIGN.config.max_failed_fraction,
    message:
        "Judging the campaign."
    script:
        "../../scripts/verdict.py"
