"""Write the campaign's report. In: ledgers, records. Out: methods.yaml, report.html. Params: scenes, spec, run."""

from cogmill.log import start_log
from cogmill.report import write_report

if __name__ == "__main__":
    start_log(snakemake.log[0])
    write_report(
        ledgers=snakemake.input.ledgers,
        cogs=snakemake.input.cogs,
        grids=snakemake.input.grids,
        home=snakemake.params.home,
        html=snakemake.output.html,
        methods=snakemake.output.methods,
        scenes=snakemake.params.scenes,
        max_failed_fraction=snakemake.params.max_failed_fraction,
        spec=snakemake.params.spec,
        run=snakemake.params.run,
    )
