    // An identifier that is out is not handed out again, and the number of those out is never above the limit.
    logic [BITS:0] limit_before;
    logic [BITS:0] really_out;
    logic began = 1'b0;

    always_comb begin
        really_out = '0;
        for (int i = 0; i < ENTRIES; i = i + 1) really_out = really_out + (BITS + 1)'(out[i]);
    end

    always_ff @(posedge clock) begin
        began <= 1'b1;
        limit_before <= limit;
    end

    always_comb begin
        if (!began) assume (reset);
        if (began) assume (limit == limit_before);
        assume (limit != '0 && limit < (BITS + 1)'(ENTRIES));
        // As submit and complete do it.
        if (!free_valid) assume (!take);
        if (!is_out) assume (!give_back);
        if (began) begin
            assert (!(take && out[index]));
            assert (out_count == really_out);
            assert (out_count <= limit);
            assert (free_valid || out_count == limit);
        end
    end
