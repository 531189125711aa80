# A 32-bit program without a C library, so that it needs no 32-bit compiler: writes an array of 1 MiB and reads it, until
# the time given as first argument (whole seconds) is over; without it, until it is killed.
# build: as --32 -g -o $OUT/thirty_two_bit.o $SRC
# build: ld -m elf_i386 -o $BIN $OUT/thirty_two_bit.o

        .set    WORDS, 262144
        .bss
array:  .skip   WORDS * 4
until:  .skip   4
digits: .skip   12
        .data
word:   .ascii  "ready "
        .text
        .globl  _start
_start: movl    8(%esp), %esi           # the first argument, or null
        xorl    %edi, %edi
        testl   %esi, %esi
        jz      1f
0:      movzbl  (%esi), %eax            # its number
        subl    $'0', %eax
        jb      1f
        imull   $10, %edi
        addl    %eax, %edi
        incl    %esi
        jmp     0b
1:      testl   %edi, %edi
        jz      2f
        call    time
        addl    %eax, %edi
        movl    %edi, until
2:      movl    $20, %eax               # getpid, in decimal from the end of digits
        int     $0x80
        movl    $digits + 11, %esi
        movb    $'\n', (%esi)
        movl    $10, %ebx
3:      xorl    %edx, %edx
        divl    %ebx
        addl    $'0', %edx
        decl    %esi
        movb    %dl, (%esi)
        testl   %eax, %eax
        jnz     3b
        movl    $word, %ecx
        movl    $6, %edx
        call    print
        movl    %esi, %ecx
        movl    $digits + 12, %edx
        subl    %esi, %edx
        call    print
round:  movl    $200, %ebp              # rounds between two looks at the clock
again:  xorl    %ecx, %ecx
4:      movl    %ebp, array(,%ecx,4)
        incl    %ecx
        cmpl    $WORDS, %ecx
        jne     4b
        xorl    %ecx, %ecx
5:      addl    array(,%ecx,4), %edx
        incl    %ecx
        cmpl    $WORDS, %ecx
        jne     5b
        decl    %ebp
        jnz     again
        cmpl    $0, until
        je      round
        call    time
        cmpl    until, %eax
        jb      round
        movl    $1, %eax                # exit(0)
        xorl    %ebx, %ebx
        int     $0x80

time:   movl    $13, %eax
        xorl    %ebx, %ebx
        int     $0x80
        ret

print:  movl    $4, %eax                # write(1, ecx, edx)
        movl    $1, %ebx
        int     $0x80
        ret
