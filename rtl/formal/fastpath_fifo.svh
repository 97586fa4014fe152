    // What comes out is what went in, in order; nothing is put into a full queue; nothing comes out of an empty one.
    logic [WIDTH-1:0] kept[DEPTH];
    logic [BITS:0] held;
    logic began = 1'b0;

    always_ff @(posedge clock) began <= 1'b1;

    always_ff @(posedge clock) begin
        if (reset) begin
            held <= '0;
        end else begin
            held <= held + (BITS + 1)'(in_valid && in_ready) - (BITS + 1)'(out_valid && out_ready);
            for (int i = 0; i < DEPTH; i = i + 1) begin
                if (out_valid && out_ready) begin
                    if (i + 1 < DEPTH && (BITS + 1)'(i + 1) < held) kept[i] <= kept[(i+1)%DEPTH];
                    else kept[i] <= in_data;
                end else if (in_valid && in_ready && (BITS + 1)'(i) == held) kept[i] <= in_data;
            end
        end
    end

    always_comb begin
        if (!began) assume (reset);
        if (began) begin
            assert (count <= FULL);
            assert (held == count);
            assert (count[BITS-1:0] == next - first);
            assert (!(put && count == FULL));
            assert (out_valid == (held != '0));
            for (int i = 0; i < DEPTH; i = i + 1) begin
                if ((BITS + 1)'(i) < held) assert (kept[i] == words[first+BITS'(i)]);
            end
            if (out_valid) assert (out_data == kept[0]);
        end
    end
