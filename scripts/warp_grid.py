"""Place one scene on its target grid. In: the record of its bands. Out: the record of its grid. Params: grid."""

from cogmill.log import start_log
from cogmill.warpgrid import make_control_grid

if __name__ == "__main__":
    start_log(snakemake.log[0])
    make_control_grid(
        cogs_record=snakemake.input.record,
        params=snakemake.params.grid,
        out_record=snakemake.output.record,
    )
